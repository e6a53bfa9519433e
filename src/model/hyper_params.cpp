#include "model/hyper_params.hpp"

#include <cmath>
#include <optional>
#include <string_view>

#include "base/error.hpp"

namespace sluice::model {
namespace {

/// Reads keys of one architecture with limits.
class KeyReader {
 public:
  KeyReader(const gguf::Metadata& metadata, const std::string& architecture)
      : metadata_(metadata), prefix_(architecture + ".") {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  std::uint32_t require(std::string_view name, std::uint64_t limit) const {
    return check(name, metadata_.require_uint(key(name)), limit);
  }
  std::uint32_t get_or(std::string_view name, std::uint32_t fallback, std::uint64_t limit) const {
    const auto value = metadata_.get_uint(key(name));
    return value ? check(name, *value, limit) : fallback;
  }
  float get_float_or(std::string_view name, float fallback) const {
    const auto value = metadata_.get_float(key(name));
    if (!value) return fallback;
    if (!std::isfinite(*value)) {
      base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a finite number", metadata_.source_name,
                 key(name), *value);
    }
    return static_cast<float>(*value);
  }
  /// A number, or an array with the same number for every layer.
  std::uint32_t require_uniform(std::string_view name, std::uint32_t n_layers, std::uint64_t limit,
                                std::optional<std::uint32_t> fallback = {}) const {
    if (!metadata_.contains(key(name))) {
      if (fallback) return *fallback;
      return check(name, metadata_.require_uint(key(name)), limit);
    }
    const auto first = metadata_.get_uint_at(key(name), 0);
    for (std::uint32_t layer = 1; layer < n_layers; ++layer) {
      const auto value = metadata_.get_uint_at(key(name), layer);
      if (value != first) {
        base::fail(
            ErrorCode::unsupported,
            "{}: {} differs between layers ({} in layer 0, {} in layer {}); such models cannot be run yet",
            metadata_.source_name, key(name), first.value_or(0), value.value_or(0), layer);
      }
    }
    return check(name, first.value_or(0), limit);
  }

 private:
  std::uint32_t check(std::string_view name, std::uint64_t value, std::uint64_t limit) const {
    if (value == 0 || value > limit) {
      base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected 1 to {}", metadata_.source_name, key(name),
                 value, limit);
    }
    return static_cast<std::uint32_t>(value);
  }

  const gguf::Metadata& metadata_;
  std::string prefix_;
};

void read_rope(const gguf::Metadata& metadata, const KeyReader& keys, HyperParams& params) {
  kernels::RopeParams& rope = params.rope;
  rope.n_rot = keys.get_or("rope.dimension_count", params.k_head_dim, k_max_head_dim);
  rope.base = keys.get_float_or("rope.freq_base", 10000.0f);
  rope.n_ctx_orig = keys.get_or("rope.scaling.original_context_length", params.n_ctx_train, k_max_context);
  if (rope.n_rot > params.k_head_dim || rope.n_rot % 2 != 0) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected an even number up to the head size {}",
               metadata.source_name, keys.key("rope.dimension_count"), rope.n_rot, params.k_head_dim);
  }
  if (!(rope.base > 0)) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a positive number", metadata.source_name,
               keys.key("rope.freq_base"), rope.base);
  }
  const auto type = metadata.get_string(keys.key("rope.scaling.type")).value_or("none");
  // Files made before the type key existed give only a linear factor.
  const float legacy = keys.get_float_or("rope.scale_linear", 0.0f);
  const float factor = keys.get_float_or("rope.scaling.factor", legacy);
  if (type == "none" && legacy == 0.0f) return;
  if (type != "none" && type != "linear" && type != "yarn") {
    base::fail(ErrorCode::unsupported, "{}: {} is \"{}\"; known kinds are none, linear and yarn",
               metadata.source_name, keys.key("rope.scaling.type"), type);
  }
  if (factor == 0.0f) return;
  if (!(factor > 0)) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a positive number", metadata.source_name,
               keys.key("rope.scaling.factor"), factor);
  }
  rope.freq_scale = 1.0f / factor;
  if (type == "yarn") {
    rope.ext_factor = keys.get_float_or("rope.scaling.yarn_ext_factor", 1.0f);
    rope.attn_factor = keys.get_float_or("rope.scaling.yarn_attn_factor",
                                         keys.get_float_or("rope.scaling.attn_factor", 1.0f));
    rope.beta_fast = keys.get_float_or("rope.scaling.yarn_beta_fast", 32.0f);
    rope.beta_slow = keys.get_float_or("rope.scaling.yarn_beta_slow", 1.0f);
  }
}

}  // namespace

HyperParams read_common_params(const gguf::Metadata& metadata, const std::string& architecture) {
  const KeyReader keys(metadata, architecture);
  HyperParams params;
  params.architecture = architecture;
  params.n_layers = keys.require("block_count", k_max_layers);
  params.n_embd = keys.require("embedding_length", k_max_width);
  params.n_ctx_train = keys.require("context_length", k_max_context);
  params.n_heads = keys.require_uniform("attention.head_count", params.n_layers, k_max_heads);
  params.n_kv_heads =
      keys.require_uniform("attention.head_count_kv", params.n_layers, k_max_heads, params.n_heads);
  if (params.n_heads % params.n_kv_heads != 0) {
    base::fail(ErrorCode::invalid_file,
               "{}: {} query heads cannot share {} KV heads evenly; the head counts are inconsistent",
               metadata.source_name, params.n_heads, params.n_kv_heads);
  }
  const bool has_head_dim = metadata.contains(keys.key("attention.key_length"));
  if (!has_head_dim && params.n_embd % params.n_heads != 0) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, not a multiple of the {} heads", metadata.source_name,
               keys.key("embedding_length"), params.n_embd, params.n_heads);
  }
  params.k_head_dim = keys.get_or("attention.key_length", params.n_embd / params.n_heads, k_max_head_dim);
  params.v_head_dim = keys.get_or("attention.value_length", params.n_embd / params.n_heads, k_max_head_dim);
  if (params.q_dim() > k_max_width || params.n_heads * params.v_head_dim > k_max_width) {
    base::fail(ErrorCode::invalid_file, "{}: {} heads of {} are wider than the limit of {}",
               metadata.source_name, params.n_heads, params.k_head_dim, k_max_width);
  }
  params.norm_eps = keys.get_float_or("attention.layer_norm_rms_epsilon", 1e-5f);
  if (!(params.norm_eps >= 0)) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a number of at least 0", metadata.source_name,
               keys.key("attention.layer_norm_rms_epsilon"), params.norm_eps);
  }
  params.attention_scale = 1.0f / std::sqrt(static_cast<float>(params.k_head_dim));
  const auto experts = metadata.get_uint(keys.key("expert_count"));
  if (!experts || *experts == 0)
    params.n_ff = keys.require_uniform("feed_forward_length", params.n_layers, k_max_width);
  read_rope(metadata, keys, params);
  return params;
}

void read_expert_params(const gguf::Metadata& metadata, HyperParams& params, std::uint32_t default_n_ff) {
  const KeyReader keys(metadata, params.architecture);
  params.n_experts = keys.require("expert_count", k_max_experts);
  params.n_experts_used = keys.require("expert_used_count", k_max_experts);
  if (params.n_experts_used > params.n_experts) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, more than the {} experts there are",
               metadata.source_name, keys.key("expert_used_count"), params.n_experts_used, params.n_experts);
  }
  params.n_ff_expert = keys.get_or("expert_feed_forward_length", default_n_ff, k_max_width);
  if (params.n_ff_expert == 0) params.n_ff_expert = keys.require("feed_forward_length", k_max_width);
  params.router.n_used = params.n_experts_used;
}

}  // namespace sluice::model
