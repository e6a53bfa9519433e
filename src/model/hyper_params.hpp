#pragma once

#include <cstdint>
#include <string>

#include "gguf/metadata.hpp"
#include "kernels/ops.hpp"

namespace sluice::model {

/// Facts of a decoder-only transformer that the forward graph needs. An architecture fills them from
/// metadata.
struct HyperParams {
  std::string architecture;
  std::uint32_t n_layers = 0;
  std::uint32_t n_embd = 0;
  std::uint32_t n_heads = 0;
  std::uint32_t n_kv_heads = 0;
  std::uint32_t k_head_dim = 0;
  std::uint32_t v_head_dim = 0;
  std::uint32_t n_ff = 0;       ///< Dense FFN width; 0 when every layer has experts.
  std::uint32_t n_experts = 0;  ///< 0: dense.
  std::uint32_t n_experts_used = 0;
  std::uint32_t n_ff_expert = 0;
  std::uint32_t n_vocab = 0;
  std::uint32_t n_ctx_train = 0;
  float norm_eps = 0;
  float attention_scale = 0;
  kernels::RopeParams rope;
  kernels::RouterParams router;
  // Which optional parts the layers have.
  bool has_qk_norm = false;
  bool has_qkv_bias = false;  ///< Required biases (Qwen2); optional ones are used when the file has them.

  bool is_moe() const noexcept { return n_experts != 0; }
  std::uint32_t q_dim() const noexcept { return n_heads * k_head_dim; }
  std::uint32_t k_dim() const noexcept { return n_kv_heads * k_head_dim; }
  std::uint32_t v_dim() const noexcept { return n_kv_heads * v_head_dim; }
  kernels::KvShape kv_shape() const noexcept { return {n_kv_heads, k_head_dim, v_head_dim}; }
};

// Limits on what a file may claim, far above any real model; they keep later arithmetic inside 32 and 64
// bits.
constexpr std::uint64_t k_max_layers = 1024;
constexpr std::uint64_t k_max_width = 1u << 20;  ///< n_embd, n_ff.
constexpr std::uint64_t k_max_heads = 4096;
constexpr std::uint64_t k_max_head_dim = 1024;  ///< Limit of the attention kernels.
constexpr std::uint64_t k_max_experts = 4096;   ///< Limit of the router kernels.
constexpr std::uint64_t k_max_vocab = 1u << 24;
constexpr std::uint64_t k_max_context = 1u << 28;

/// Reads what all architectures share ("ARCH.block_count", "ARCH.embedding_length", ...) and checks it.
/// Throws Error(invalid_file) naming the key, the value found and what was expected.
HyperParams read_common_params(const gguf::Metadata& metadata, const std::string& architecture);

/// Reads the expert keys; `default_n_ff` is the expert width where the file gives none of its own.
void read_expert_params(const gguf::Metadata& metadata, HyperParams& params, std::uint32_t default_n_ff);

}  // namespace sluice::model
