#pragma once

#include <memory>
#include <string>
#include <utility>

#include "sluice/tokenizer.hpp"
#include "tokenizer/tokenizer.hpp"

namespace sluice {

struct Tokenizer::Impl {
  /// Null when the file has no vocabulary: such a model runs on token ids alone.
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::string path;  ///< Of the file, for errors.
};

}  // namespace sluice
