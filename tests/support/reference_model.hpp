#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace sluice::test {

/// Logits [n_tokens, n_vocab] of a whole text, computed the slow and obvious way in double precision: weights
/// are decoded to floats, nothing is quantized, cached, batched or shared with the engine but the file parser
/// and the block decoder: it finds tensors and keys itself. For texts shorter than any window of the model's.
/// Throws std::runtime_error for an architecture that it does not know.
std::vector<std::vector<double>> reference_logits(const std::filesystem::path& path,
                                                  const std::vector<std::int32_t>& tokens);

}  // namespace sluice::test
