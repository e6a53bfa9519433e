#include "model/architecture_parts.hpp"

#include <cmath>

#include "base/error.hpp"
#include "kernels/router.hpp"

namespace sluice::model::arch {
namespace {

using Scoring = kernels::RouterParams::Scoring;

std::uint32_t read_n_layers(Keys& keys) {
  return keys.require("block_count", k_max_layers);
}

/// Yet Another RoPE extensioN (Peng et al. 2023), whose temperature may be one of its own.
void read_yarn(Keys& keys, float factor, kernels::RopeParams& rope) {
  rope.ext_factor = keys.get_float_or("rope.scaling.yarn_ext_factor", 1.0f);
  rope.attn_factor = keys.get_float_or("rope.scaling.yarn_attn_factor", rope.attn_factor);
  rope.beta_fast = keys.get_float_or("rope.scaling.yarn_beta_fast", 32.0f);
  rope.beta_slow = keys.get_float_or("rope.scaling.yarn_beta_slow", 1.0f);
  // The kernels multiply by the usual temperature 1 + 0.1 ln(factor); models with a multiplier m divide it by
  // 1 + 0.1 m ln(factor).
  const float multiplier = keys.get_float_or("rope.scaling.yarn_log_multiplier", 0.0f);
  if (multiplier != 0.0f && factor > 1.0f) rope.attn_factor /= 1.0f + 0.1f * multiplier * std::log(factor);
}

RopeCurve read_curve(Keys& keys, Pairs pairs, std::uint32_t n_ctx_train, std::uint32_t head_dim) {
  RopeCurve curve;
  kernels::RopeParams& rope = curve.params;
  rope.neox = pairs == Pairs::halves;
  rope.n_rot = keys.get_or("rope.dimension_count", head_dim, k_max_head_dim);
  rope.base = keys.get_positive_or("rope.freq_base", 10000.0f);
  rope.n_ctx_orig = keys.get_or("rope.scaling.original_context_length", n_ctx_train, k_max_context);
  if (rope.n_rot > head_dim || rope.n_rot % 2 != 0) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected an even number up to the head size {}",
               keys.file(), keys.full("rope.dimension_count"), rope.n_rot, head_dim);
  }
  rope.attn_factor = keys.get_positive_or("rope.scaling.attn_factor", 1.0f);
  const std::string type = keys.get_string_or("rope.scaling.type", "none");
  // Files made before the type key existed give only a linear factor.
  const float legacy = keys.get_float_or("rope.scale_linear", 0.0f);
  const float factor = keys.get_float_or("rope.scaling.factor", legacy);
  if (type == "none" && legacy == 0.0f) return curve;
  if (type != "none" && type != "linear" && type != "yarn") {
    base::fail(ErrorCode::unsupported, "{}: {} is \"{}\"; known kinds are none, linear and yarn", keys.file(),
               keys.full("rope.scaling.type"), type);
  }
  if (factor == 0.0f) return curve;
  if (!(factor > 0)) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a positive number", keys.file(),
               keys.full("rope.scaling.factor"), factor);
  }
  rope.freq_scale = 1.0f / factor;
  if (type == "yarn") read_yarn(keys, factor, rope);
  return curve;
}

std::uint32_t read_k_head_dim(Keys& keys, std::uint32_t n_embd, std::uint32_t n_heads) {
  if (!keys.has("attention.key_length") && n_embd % n_heads != 0) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, not a multiple of the {} heads", keys.file(),
               keys.full("embedding_length"), n_embd, n_heads);
  }
  return keys.get_or("attention.key_length", n_embd / n_heads, k_max_head_dim);
}

std::uint32_t read_n_embd(Keys& keys) {
  return keys.require("embedding_length", k_max_width);
}

std::uint32_t read_n_heads(Keys& keys) {
  return keys.require_uniform("attention.head_count", read_n_layers(keys), k_max_heads);
}

Scoring read_scoring(Keys& keys, Scoring fallback) {
  const std::uint32_t kind = keys.count("expert_gating_func", 1u << 16);
  switch (kind) {
    case 0:
      return fallback;
    case 1:
      return Scoring::softmax;
    case 2:
      return Scoring::sigmoid;
    case 3:
      return Scoring::softmax_of_selected;
    default:
      base::fail(ErrorCode::unsupported,
                 "{}: {} is {}; known are 1 (softmax), 2 (logistic) and 3 (softmax of the chosen)",
                 keys.file(), keys.full("expert_gating_func"), kind);
  }
}

/// DeepSeek V2 takes the groups with the best expert. V3 and those that followed it, which have logistic
/// scores, take those whose best two are best together.
void read_expert_groups(Keys& keys, MoeSpec& moe) {
  kernels::RouterParams& router = moe.router;
  router.n_groups = keys.get_or("expert_group_count", 1, kernels::k_max_expert_groups);
  router.n_groups_used = keys.get_or("expert_group_used_count", router.n_groups, router.n_groups);
  if (router.n_groups == 1) return;
  router.n_group_best = router.scoring == Scoring::sigmoid ? 2 : 1;
  const std::uint32_t size = moe.n_experts / router.n_groups;
  if (moe.n_experts % router.n_groups != 0 || size < router.n_group_best ||
      size * router.n_groups_used < router.n_used) {
    base::fail(
        ErrorCode::invalid_file,
        "{}: {} is {}, of which {} are used: {} experts cannot be divided so when {} of them are chosen",
        keys.file(), keys.full("expert_group_count"), router.n_groups, router.n_groups_used, moe.n_experts,
        router.n_used);
  }
}

}  // namespace

ModelSpec read_decoder(Keys& keys, Pairs pairs) {
  ModelSpec model;
  model.architecture = keys.architecture();
  read_n_layers(keys);
  model.n_embd = read_n_embd(keys);
  model.n_ctx_train = keys.require("context_length", k_max_context);
  model.norm_eps = keys.get_float_or("attention.layer_norm_rms_epsilon", 1e-5f);
  if (!(model.norm_eps >= 0)) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a number of at least 0", keys.file(),
               keys.full("attention.layer_norm_rms_epsilon"), model.norm_eps);
  }
  if (!keys.get_bool_or("attention.causal", true)) {
    base::fail(ErrorCode::unsupported,
               "{}: {} is false: the model reads in both directions and writes no text", keys.file(),
               keys.full("attention.causal"));
  }
  const std::uint32_t head_dim = read_k_head_dim(keys, model.n_embd, read_n_heads(keys));
  model.curves.push_back(read_curve(keys, pairs, model.n_ctx_train, head_dim));
  return model;
}

AttentionSpec read_attention(Keys& keys) {
  AttentionSpec attention;
  const std::uint32_t n_embd = read_n_embd(keys);
  attention.n_heads = read_n_heads(keys);
  attention.n_kv_heads =
      keys.require_uniform("attention.head_count_kv", read_n_layers(keys), k_max_heads, attention.n_heads);
  if (attention.n_heads % attention.n_kv_heads != 0) {
    base::fail(ErrorCode::invalid_file,
               "{}: {} query heads cannot share {} KV heads evenly; the head counts are inconsistent",
               keys.file(), attention.n_heads, attention.n_kv_heads);
  }
  attention.k_head_dim = read_k_head_dim(keys, n_embd, attention.n_heads);
  attention.v_head_dim = keys.get_or("attention.value_length", n_embd / attention.n_heads, k_max_head_dim);
  if (attention.q_dim() > k_max_width || attention.out_dim() > k_max_width) {
    base::fail(ErrorCode::invalid_file, "{}: {} heads of {} are wider than the limit of {}", keys.file(),
               attention.n_heads, attention.k_head_dim, k_max_width);
  }
  const float scale = keys.get_float_or("attention.scale", 0.0f);
  attention.scale = scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(attention.k_head_dim));
  return attention;
}

FfnSpec read_ffn(Keys& keys) {
  return {keys.require_uniform("feed_forward_length", read_n_layers(keys), k_max_width)};
}

MoeSpec read_experts(Keys& keys, ExpertDefaults defaults) {
  MoeSpec moe;
  moe.n_experts = keys.require("expert_count", k_max_experts);
  moe.router.n_used = keys.require("expert_used_count", k_max_experts);
  if (moe.router.n_used > moe.n_experts) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, more than the {} experts there are", keys.file(),
               keys.full("expert_used_count"), moe.router.n_used, moe.n_experts);
  }
  // Without a width of their own experts have that of a dense block, which otherwise nothing has.
  const std::uint32_t width =
      keys.has("expert_feed_forward_length") ? keys.require("expert_feed_forward_length", k_max_width) : 0;
  const std::uint32_t dense_width = keys.count("feed_forward_length", k_max_width);
  moe.expert.width = width != 0 ? width : dense_width;
  if (moe.expert.width == 0) moe.expert.width = keys.require("feed_forward_length", k_max_width);
  moe.router.scoring = read_scoring(keys, defaults.scoring);
  moe.router.normalize = keys.get_bool_or("expert_weights_norm", defaults.normalize);
  const float scale = keys.get_float_or("expert_weights_scale", 0.0f);
  moe.router.scale = scale != 0 ? scale : 1.0f;
  read_expert_groups(keys, moe);
  return moe;
}

FfnSpec read_shared_expert(Keys& keys) {
  return {keys.count("expert_shared_feed_forward_length", k_max_width)};
}

FfnSpec read_shared_experts(Keys& keys, const MoeSpec& moe) {
  const std::uint32_t n_shared = keys.count("expert_shared_count", k_max_experts);
  FfnSpec shared = read_shared_expert(keys);
  if (shared.width != 0) return shared;
  const std::uint64_t width = std::uint64_t{n_shared} * moe.expert.width;
  if (width > k_max_width) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}: so many experts of {} are wider than the limit of {}",
               keys.file(), keys.full("expert_shared_count"), n_shared, moe.expert.width, k_max_width);
  }
  shared.width = static_cast<std::uint32_t>(width);
  return shared;
}

void let_layers_slide(ModelSpec& model, std::uint32_t window, std::uint32_t period, std::uint32_t curve) {
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (i % period == period - 1) continue;
    auto& attention = std::get<AttentionSpec>(model.layers[i].mixer);
    attention.window = window;
    attention.curve = curve;
  }
}

void add_layers(ModelSpec& model, Keys& keys, const MixerSpec& mixer, const ChannelSpec& channel) {
  LayerSpec layer;
  layer.mixer = mixer;
  layer.channel = channel;
  const std::uint32_t n_blocks = read_n_layers(keys);
  model.n_prediction_layers = keys.count("nextn_predict_layers", n_blocks - 1);
  model.layers.assign(n_blocks - model.n_prediction_layers, layer);
}

void add_mixed_layers(ModelSpec& model, Keys& keys, const MixerSpec& mixer, const MoeSpec& moe) {
  add_layers(model, keys, mixer, moe);
  const std::uint32_t n_dense = keys.count("leading_dense_block_count", k_max_layers);
  const std::uint32_t step = keys.get_or("interleave_moe_layer_step", 1, k_max_layers);
  if (n_dense == 0 && step == 1) return;
  const FfnSpec dense = read_ffn(keys);
  for (std::uint32_t i = 0; i < model.n_layers(); ++i) {
    if (i < n_dense || (i + 1) % step != 0) model.layers[i].channel = dense;
  }
}

DeltaSpec read_delta(Keys& keys) {
  DeltaSpec delta;
  kernels::DeltaShape& shape = delta.shape;
  shape.n_k_heads = keys.require("ssm.group_count", k_max_heads);
  shape.n_v_heads = keys.require("ssm.time_step_rank", k_max_heads);
  shape.head_dim = keys.require("ssm.state_size", k_max_head_dim);
  shape.n_taps = keys.require("ssm.conv_kernel", kernels::k_max_taps);
  const std::uint32_t inner = keys.require("ssm.inner_size", k_max_width);
  if (shape.n_v_heads % shape.n_k_heads != 0 || inner != shape.v_dim()) {
    base::fail(ErrorCode::invalid_file,
               "{}: {} key heads and {} value heads of {} do not make a width of {} ({}); the sizes of the "
               "recurrent layers are inconsistent",
               keys.file(), shape.n_k_heads, shape.n_v_heads, shape.head_dim, inner,
               keys.full("ssm.inner_size"));
  }
  if (shape.head_dim % kernels::k_delta_columns != 0 || shape.n_taps < 2) {
    base::fail(ErrorCode::unsupported, "{}: {} is {} and {} is {}; expected a multiple of {} and at least 2",
               keys.file(), keys.full("ssm.state_size"), shape.head_dim, keys.full("ssm.conv_kernel"),
               shape.n_taps, kernels::k_delta_columns);
  }
  return delta;
}

void add_hybrid_layers(ModelSpec& model, Keys& keys, const DeltaSpec& delta, const ChannelSpec& channel) {
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::per_head;
  attention.out_gate = true;
  if (attention.k_head_dim != attention.v_head_dim) {
    base::fail(ErrorCode::invalid_file,
               "{}: keys of a head have {} elements and values {}; with gates they are equal", keys.file(),
               attention.k_head_dim, attention.v_head_dim);
  }
  // How the places of a picture's tokens rotate; in text all three are the position.
  keys.ignore("rope.dimension_sections");
  add_layers(model, keys, attention, channel);
  constexpr std::uint32_t k_usual_interval = 4;
  const std::uint32_t interval = keys.get_or("full_attention_interval", k_usual_interval, k_max_layers);
  for (std::uint32_t i = 0; i < model.n_layers(); ++i) {
    model.layers[i].channel_norm = "post_attention_norm";
    if ((i + 1) % interval != 0) model.layers[i].mixer = delta;
  }
}

ModelSpec read_gemma(Keys& keys, AttentionSpec attention, std::uint32_t n_layers_of_largest) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  model.embedding_scale = std::sqrt(static_cast<float>(model.n_embd));
  FfnSpec ffn = read_ffn(keys);
  ffn.activation = kernels::Activation::gelu_tanh;
  if (read_n_layers(keys) == n_layers_of_largest)
    attention.scale =
        1.0f / std::sqrt(static_cast<float>(model.n_embd) / static_cast<float>(attention.n_heads));
  add_layers(model, keys, attention, ffn);
  for (LayerSpec& layer : model.layers) {
    layer.mixer_out_norm = "post_attention_norm";
    layer.channel_out_norm = "post_ffw_norm";
  }
  return model;
}

}  // namespace sluice::model::arch
