#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/reader.hpp"
#include "gguf/writer.hpp"
#include "synth/shapes.hpp"

namespace sluice::synth {

/// Everything of a synthetic file but its weights.
struct SynthHeader {
  /// `n_layers` 0: all of the shape's. Throws Error(invalid_argument) for an unknown type, listing the known.
  SynthHeader(const ShapeSpec& shape, const std::string& type, std::uint32_t n_layers);

  std::uint32_t n_layers;
  std::vector<TensorSpec> specs;
  gguf::Writer writer;           ///< Has written the header; takes the tensors.
  std::vector<std::byte> bytes;  ///< Before the data.
  std::uint64_t n_parameters = 0;
  std::uint64_t file_bytes = 0;  ///< Of the whole file.
};

/// The file of a whole shape as parsing its header gives it; nothing is written. Throws
/// Error(invalid_argument) for an unknown shape or type.
gguf::ModelFile parse_shape(const std::string& shape, const std::string& type);

}  // namespace sluice::synth
