#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "model/architecture_parts.hpp"

namespace sluice::model::arch {
namespace {

using Scoring = kernels::RouterParams::Scoring;

/// Files of the newer form have the sizes of the attention over the short vectors under the usual names,
/// those of the heads under names of their own, and a matrix each for keys and values.
MlaSpec read_latent_attention(Keys& keys) {
  MlaSpec mla;
  mla.n_heads = keys.require("attention.head_count", k_max_heads);
  mla.q_rank = keys.count("attention.q_lora_rank", k_max_width);
  mla.kv_rank = keys.require("attention.kv_lora_rank", k_max_head_dim);
  mla.n_rot = keys.require("rope.dimension_count", k_max_head_dim);
  keys.require_uniform("attention.head_count_kv", keys.require("block_count", k_max_layers), k_max_heads, 1);
  const std::uint32_t k_dim = keys.require("attention.key_length", k_max_head_dim);
  const std::uint32_t v_dim = keys.require("attention.value_length", k_max_head_dim);
  mla.undivided = !keys.has("attention.key_length_mla");
  const char* const q_key = mla.undivided ? "attention.key_length" : "attention.key_length_mla";
  const std::uint32_t q_head_dim = keys.require(q_key, k_max_head_dim);
  mla.v_head_dim = mla.undivided ? v_dim : keys.require("attention.value_length_mla", k_max_head_dim);
  if (q_head_dim <= mla.n_rot || mla.kept_dim() > k_max_head_dim) {
    base::fail(ErrorCode::invalid_file,
               "{}: {} is {}, expected more than the {} elements that rotate, which with the {} of {} are at "
               "most {}",
               keys.file(), keys.full(q_key), q_head_dim, mla.n_rot, mla.kv_rank,
               keys.full("attention.kv_lora_rank"), k_max_head_dim);
  }
  if (!mla.undivided && (k_dim != mla.kept_dim() || v_dim != mla.kv_rank)) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {} and {} is {}, expected {} and {} for latent attention",
               keys.file(), keys.full("attention.key_length"), k_dim, keys.full("attention.value_length"),
               v_dim, mla.kept_dim(), mla.kv_rank);
  }
  mla.n_plain = q_head_dim - mla.n_rot;
  const std::uint32_t widest = std::max({mla.kept_dim(), q_head_dim, mla.n_plain + mla.v_head_dim});
  if (std::uint64_t{mla.n_heads} * widest > k_max_width) {
    base::fail(ErrorCode::invalid_file, "{}: {} heads of {} are wider than the limit of {}", keys.file(),
               mla.n_heads, widest, k_max_width);
  }
  mla.scale = 1.0f / std::sqrt(static_cast<float>(q_head_dim));
  return mla;
}

/// Queries that grow with their position, of Mistral's models.
kernels::Temperature read_temperature(Keys& keys) {
  kernels::Temperature temperature;
  temperature.scale = keys.get_float_or("attention.temperature_scale", 0.0f);
  const std::uint32_t interval = keys.count("attention.temperature_length", k_max_context);
  if (temperature.scale != 0)
    temperature.interval =
        interval != 0 ? interval : keys.require("attention.temperature_length", k_max_context);
  return temperature;
}

/// YaRN's temperature: all of a query and a key grow by 1 + m ln(factor), with m the key's number, not only
/// what rotates; so the scores grow by the square, and the rotation, whose curve multiplies by
/// 1 + 0.1 ln(factor), leaves lengths as they are.
void move_temperature(Keys& keys, RopeCurve& curve, MlaSpec& mla) {
  kernels::RopeParams& rope = curve.params;
  const float multiplier = keys.get_float_or("rope.scaling.yarn_log_multiplier", 0.0f);
  if (rope.ext_factor == 0.0f) return;
  if (!(multiplier > 0)) {
    base::fail(ErrorCode::unsupported,
               "{}: {} is {}, expected a number above 0 beside YaRN; convert the model "
               "again",
               keys.file(), keys.full("rope.scaling.yarn_log_multiplier"), multiplier);
  }
  const float log_factor = std::log(1.0f / rope.freq_scale);
  rope.attn_factor = keys.get_positive_or("rope.scaling.attn_factor", 1.0f) / (1.0f + 0.1f * log_factor);
  const float growth = 1.0f + multiplier * log_factor;
  mla.scale *= growth * growth;
}

/// For files that do not say it: all older ones are of version 2, but for the first of GLM 4.7 Flash.
Scoring usual_scoring(Keys& keys) {
  const std::uint32_t n_blocks = keys.require("block_count", k_max_layers);
  const bool is_glm = (n_blocks == 47 || n_blocks == 48) && keys.count("vocab_size", k_max_vocab) == 154880;
  return is_glm ? Scoring::sigmoid : Scoring::softmax;
}

}  // namespace

// DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash: latent attention; the first layers are dense, the others
// have experts, chosen within groups, beside those that every row gets. From V3 on scores are logistic with
// a bias.
ModelSpec read_deepseek2(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::neighbours);
  MlaSpec mla = read_latent_attention(keys);
  mla.temperature = read_temperature(keys);
  move_temperature(keys, model.curves[0], mla);
  MoeSpec moe = read_experts(keys, {.scoring = usual_scoring(keys), .normalize = false});
  moe.selection_bias = moe.router.scoring == Scoring::sigmoid;
  moe.shared = read_shared_experts(keys, moe);
  add_mixed_layers(model, keys, mla, moe);
  return model;
}

}  // namespace sluice::model::arch
