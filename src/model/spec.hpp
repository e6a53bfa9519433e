#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/ops.hpp"

namespace sluice::model {

// What a decoder-only transformer consists of, as plain data. A file in arch/ fills it from metadata;
// graph.cpp makes blocks of it. No field is about one architecture: each says what is computed.

/// How positions rotate queries and keys.
struct RopeCurve {
  kernels::RopeParams params;
  /// Vectors [n_rot/2] that divide the frequencies, when the file has them; null: none. With a second one,
  /// contexts longer than params.n_ctx_orig use that.
  const char* factors = "rope_freqs.weight";
  const char* long_factors = nullptr;
};

/// Grouped-query attention.
struct AttentionSpec {
  std::uint32_t n_heads = 0;
  std::uint32_t n_kv_heads = 0;
  std::uint32_t k_head_dim = 0;
  std::uint32_t v_head_dim = 0;
  std::uint32_t window = 0;  ///< Positions that a query sees, its own included; 0: all.
  std::uint32_t chunk = 0;   ///< It sees its own chunk of so many positions only; 0: all.
  bool rotates = true;       ///< Otherwise positions do not count.
  std::uint32_t curve = 0;   ///< Of ModelSpec::curves.
  float scale = 0;           ///< Of the scores.
  float softcap = 0;         ///< Scores become softcap * tanh(score / softcap); 0: none.
  bool sinks = false;        ///< A score for each head that takes part in the softmax without a value.
  kernels::Temperature temperature;
  /// One matrix each for queries, keys and values, or one for all three.
  enum class Projection : std::uint8_t { split, fused } projection = Projection::split;
  /// Norm of queries and keys: of each head, the same without a gain, or of all heads together.
  enum class QkNorm : std::uint8_t { none, per_head, gainless, whole_row } qk_norm = QkNorm::none;
  bool needs_qk_norm = true;   ///< Otherwise the norms are used when the file has them.
  bool norms_rotated = false;  ///< The norms come after the rotation.
  /// The query matrix makes a query and a gate for each head; the logistic function of the gates scales the
  /// output of the heads, whose keys are as wide as their values.
  bool out_gate = false;
  bool needs_qkv_bias = false;  ///< Otherwise biases are used when the file has them.

  std::uint32_t q_dim() const noexcept { return n_heads * k_head_dim; }
  std::uint32_t k_dim() const noexcept { return n_kv_heads * k_head_dim; }
  std::uint32_t v_dim() const noexcept { return n_kv_heads * v_head_dim; }
  std::uint32_t out_dim() const noexcept { return n_heads * v_head_dim; }
};

/// Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads are made from one short
/// vector of a position, which alone is kept, with a part of the key that rotates and that all heads share.
/// What would make keys of it is applied to the queries instead, what would make values of it to the results.
struct MlaSpec {
  std::uint32_t n_heads = 0;
  std::uint32_t q_rank = 0;   ///< Queries are made from a vector of so many elements; 0: from the input.
  std::uint32_t kv_rank = 0;  ///< Elements of the short vector.
  std::uint32_t n_plain = 0;  ///< Of a head of the queries: elements that do not rotate, first,
  std::uint32_t n_rot = 0;    ///< and those that do.
  std::uint32_t v_head_dim = 0;
  /// One matrix holds, head by head, what makes keys and what makes values of the short vector; otherwise
  /// there is one for each.
  bool undivided = false;
  float scale = 0;  ///< Of the scores.
  kernels::Temperature temperature;

  std::uint32_t q_head_dim() const noexcept { return n_plain + n_rot; }
  std::uint32_t q_dim() const noexcept { return n_heads * q_head_dim(); }
  std::uint32_t kept_dim() const noexcept { return kv_rank + n_rot; }
  std::uint32_t out_dim() const noexcept { return n_heads * v_head_dim; }
};

/// The gated delta rule: linear attention with a state of fixed size.
struct DeltaSpec {
  kernels::DeltaShape shape;
  bool joint_gates = false;  ///< One matrix makes beta and alpha, not one each.
};

/// down(activation(gate(x), up(x))).
struct FfnSpec {
  std::uint32_t width = 0;
  kernels::Activation activation = kernels::Activation::silu;
  /// Two matrices for gate and up, or one that holds both, gate first.
  enum class Form : std::uint8_t { split, fused } form = Form::split;
};

/// Experts, of which a router chooses some for each row, and perhaps one that every row gets.
struct MoeSpec {
  std::uint32_t n_experts = 0;
  FfnSpec expert;
  kernels::RouterParams router;
  bool selection_bias = false;    ///< The file has a bias that counts for the choice only.
  bool biases = false;            ///< Of the router's logits and of the experts' products.
  bool weights_at_input = false;  ///< Weights scale what experts get, not what they give. One expert is used.
  FfnSpec shared;                 ///< Without width: none.
  bool shared_gate = false;  ///< The shared expert's result is scaled by a logistic function of the input.
};

using MixerSpec = std::variant<AttentionSpec, MlaSpec, DeltaSpec>;
using ChannelSpec = std::variant<FfnSpec, MoeSpec>;

/// x += residual_scale * mixer(norm(x)), then x += residual_scale * channel(norm(x)). With a norm behind a
/// part, too, its result is normalised before it is added.
struct LayerSpec {
  const char* mixer_norm = "attn_norm";
  const char* channel_norm = "ffn_norm";
  const char* mixer_out_norm = nullptr;
  const char* channel_out_norm = nullptr;
  MixerSpec mixer;
  ChannelSpec channel;
};

struct ModelSpec {
  std::string architecture;
  std::uint32_t n_embd = 0;
  std::uint32_t n_vocab = 0;  ///< Rows of the embedding; metadata do not say it.
  std::uint32_t n_ctx_train = 0;
  float norm_eps = 0;
  bool norm_biases = false;  ///< Of the norms before the parts of a layer and before the output.
  bool output_bias = false;  ///< Of the logits' product.
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;    ///< Logits are multiplied by it.
  float logit_softcap = 0;  ///< Then they become logit_softcap * tanh(logit / logit_softcap); 0: none.
  std::vector<RopeCurve> curves;
  std::vector<LayerSpec> layers;
  /// Layers that the file has behind these, for guessing further tokens. They are not run.
  std::uint32_t n_prediction_layers = 0;

  /// RopeParams::n_rot of all curves together.
  std::uint32_t n_rope_columns() const noexcept;
  std::uint32_t n_layers() const noexcept { return static_cast<std::uint32_t>(layers.size()); }
  /// Of the first layer that has experts; null for dense models. The number of experts and how many are used
  /// are the same in all such layers.
  const MoeSpec* experts() const noexcept;
  std::uint32_t n_experts() const noexcept { return experts() == nullptr ? 0 : experts()->n_experts; }
  std::uint32_t n_experts_used() const noexcept {
    return experts() == nullptr ? 0 : experts()->router.n_used;
  }
};

// Limits on what a file may claim, far above any real model; they keep later arithmetic inside 32 and 64
// bits.
constexpr std::uint64_t k_max_layers = 1024;
constexpr std::uint64_t k_max_width = 1u << 20;  ///< n_embd, widths of feed-forward blocks.
constexpr std::uint64_t k_max_heads = 4096;
constexpr std::uint64_t k_max_head_dim = 1024;  ///< Limit of the attention kernels.
constexpr std::uint64_t k_max_experts = 4096;   ///< Limit of the router kernels.
constexpr std::uint64_t k_max_vocab = 1u << 24;
constexpr std::uint64_t k_max_context = 1u << 28;

}  // namespace sluice::model
