#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gguf/metadata.hpp"
#include "model/hyper_params.hpp"

namespace sluice::model {

/// Fills the hyper-parameters of one architecture from a file's metadata.
using ReadParams = HyperParams (*)(const gguf::Metadata& metadata);

/// One entry of the table of architectures. Adding one is a file in arch/ and a line in architecture.cpp.
struct Architecture {
  const char* name;  ///< As general.architecture spells it.
  ReadParams read_params;
};

/// Architectures this version can run.
const std::vector<Architecture>& known_architectures();

/// Reads a file's hyper-parameters. Throws Error(invalid_file) when the file names no architecture,
/// Error(unsupported) listing the known ones when it names another.
HyperParams read_hyper_params(const gguf::Metadata& metadata);

namespace arch {
HyperParams read_llama(const gguf::Metadata& metadata);
HyperParams read_qwen2(const gguf::Metadata& metadata);
HyperParams read_qwen3(const gguf::Metadata& metadata);
HyperParams read_qwen3moe(const gguf::Metadata& metadata);
}  // namespace arch

}  // namespace sluice::model
