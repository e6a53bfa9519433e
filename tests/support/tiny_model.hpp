#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gguf/types.hpp"

namespace sluice::test {

/// A small random model of any architecture the engine runs: metadata with the keys that its files have, the
/// tensors that the graph of these metadata declares, weights of a scale that keeps logits in a sane range,
/// and a byte-level vocabulary.
struct TinyModel {
  std::string architecture = "qwen3moe";
  std::uint32_t n_layers = 3;
  std::uint32_t n_embd = 64;
  std::uint32_t n_heads = 4;
  std::uint32_t n_kv_heads = 2;
  std::uint32_t head_dim = 32;
  std::uint32_t n_ff = 96;
  std::uint32_t n_experts = 8;  ///< 0: dense.
  std::uint32_t n_experts_used = 2;
  std::uint32_t n_ctx = 256;
  std::uint32_t n_rot = 0;       ///< Of a head's elements, how many rotate; 0: all.
  std::uint32_t n_ctx_orig = 0;  ///< The context before it was made longer; 0: no key.
  bool optional_tensors = true;  ///< Those that the graph takes when they are there: biases, factors.
  bool second_scales = false;    ///< One beside each matrix that may have one.
  bool second_version = false;   ///< deepseek2 as V2: softmax, groups by their best expert, plain queries.
  bool undivided = false;        ///< deepseek2 in its older form: one matrix for keys and values.
  bool split_experts = false;    ///< One tensor per expert, as old Mixtral files have.
  bool tied_output = false;
  bool rope_freqs = false;
  std::string rope_scaling;  ///< "", "linear" or "yarn", by the factor 4.
  std::uint64_t seed = 1;
  /// Type of all matrices. Other types than F32 need widths that are multiples of their block.
  gguf::TensorType type = gguf::TensorType::f32;
  /// Type of norms and biases (F32, F16, BF16, F64; I32 is refused). When given, their values have so few
  /// digits that all of these types hold them.
  std::optional<gguf::TensorType> vector_type;
  std::uint32_t alignment_bytes = 32;
};

/// Of that architecture, with experts when it has some in all files.
TinyModel tiny_model_of(const std::string& architecture);

/// The file's bytes.
std::vector<std::byte> make_tiny_model(const TinyModel& model);
/// Writes it and returns its path: DIR/tiny.gguf.
std::filesystem::path write_tiny_model(const std::filesystem::path& folder, const TinyModel& model);
/// Writes it as `n_shards` files NAME-0000i-of-0000n.gguf, tensors dealt out in order; returns their paths.
std::vector<std::filesystem::path> write_tiny_shards(const std::filesystem::path& folder,
                                                     const TinyModel& model, std::uint32_t n_shards);

}  // namespace sluice::test
