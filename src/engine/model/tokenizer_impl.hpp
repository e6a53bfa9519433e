#pragma once

#include <memory>
#include <utility>

#include "sluice/tokenizer.hpp"
#include "tokenizer/tokenizer.hpp"

namespace sluice {

/// Null when the file has no vocabulary: such a model runs on token ids alone.
struct Tokenizer::Impl {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
};

}  // namespace sluice
