#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace sluice::test {

/// Logits [n_tokens, n_vocab] of a whole text, computed the slow and obvious way in double precision: weights
/// are decoded to floats, nothing is quantized, cached, batched or shared with the engine but the file parser
/// and the block decoder. Knows llama, qwen2, qwen3 and qwen3moe, merged and split experts, linear and YaRN
/// scaling.
std::vector<std::vector<double>> reference_logits(const std::filesystem::path& path,
                                                  const std::vector<std::int32_t>& tokens);

}  // namespace sluice::test
