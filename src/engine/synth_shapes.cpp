#include "engine/synth_shapes.hpp"

#include <fmt/core.h>

#include <array>
#include <cmath>

#include "base/error.hpp"

namespace sluice::engine {
namespace {

using gguf::TensorType;

constexpr ShapeSpec qwen3_moe(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                              std::uint32_t n_heads, std::uint32_t n_ff, std::uint32_t n_ff_expert,
                              std::uint32_t n_ctx, float rope_base) {
  return {name, "qwen3moe", "qwen2", n_layers, n_embd,    n_heads, 4,    128,   n_ff,  n_ff_expert,
          128,  8,          151936,  n_ctx,    rope_base, 1e-6f,   true, false, false, false};
}

constexpr ShapeSpec qwen3(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                          std::uint32_t n_heads, std::uint32_t n_ff) {
  return {name, "qwen3", "qwen2", n_layers, n_embd, n_heads, 8,    128,   n_ff,  0,
          0,    0,       151936,  40960,    1e6f,   1e-6f,   true, false, false, false};
}

constexpr ShapeSpec qwen25(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                           std::uint32_t n_heads, std::uint32_t n_kv_heads, std::uint32_t n_ff) {
  return {name, "qwen2", "qwen2", n_layers, n_embd, n_heads, n_kv_heads, 128,  n_ff,  0,
          0,    0,       152064,  32768,    1e6f,   1e-6f,   false,      true, false, false};
}

constexpr ShapeSpec mixtral(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                            std::uint32_t n_heads, std::uint32_t n_ff, std::uint32_t n_ctx) {
  return {name, "llama", "llama-bpe", n_layers, n_embd, n_heads, 8,     128,   n_ff,  n_ff,
          8,    2,       32000,       n_ctx,    1e6f,   1e-5f,   false, false, false, false};
}

constexpr ShapeSpec llama3(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                           std::uint32_t n_heads, std::uint32_t n_ff, bool is_70b) {
  return {name, "llama", "llama-bpe", n_layers, n_embd, n_heads, 8,     128,   n_ff, 0,
          0,    0,       128256,      131072,   5e5f,   1e-5f,   false, false, true, is_70b};
}

constexpr auto k_shapes = std::to_array<ShapeSpec>({
    qwen3_moe("qwen3-30b-a3b", 48, 2048, 32, 6144, 768, 40960, 1e6f),
    qwen3_moe("qwen3-coder-30b", 48, 2048, 32, 6144, 768, 262144, 1e7f),
    qwen3_moe("qwen3-235b-a22b", 94, 4096, 64, 12288, 1536, 40960, 1e6f),
    mixtral("mixtral-8x7b", 32, 4096, 32, 14336, 32768),
    mixtral("mixtral-8x22b", 56, 6144, 48, 16384, 65536),
    llama3("llama3-8b", 32, 4096, 32, 14336, false),
    llama3("llama3-70b", 80, 8192, 64, 28672, true),
    qwen25("qwen2.5-7b", 28, 3584, 28, 4, 18944),
    qwen25("qwen2.5-32b", 64, 5120, 40, 8, 27648),
    qwen3("qwen3-8b", 36, 4096, 32, 12288),
    qwen3("qwen3-14b", 40, 5120, 40, 17408),
    qwen3("qwen3-32b", 64, 5120, 64, 25600),
    // No real model: small enough for tests, with rows of whole K-quant blocks.
    {"tiny-moe", "qwen3moe", "qwen2", 2,    512,  4,     2,    64,    512,   256,
     16,         4,          1024,    4096, 1e6f, 1e-6f, true, false, false, false},
});

enum class Part : std::uint8_t { embedding, output, q, k, v, attn_output, gate, up, down };

/// The rule of llama.cpp's quantizer: the first and the last eighth of the layers and every third between
/// them get more bits for what suffers most.
constexpr bool gets_more_bits(std::uint32_t layer_idx, std::uint32_t n_layers) {
  const std::uint32_t eighth = n_layers / 8;
  return layer_idx < eighth || layer_idx >= 7 * n_layers / 8 || (layer_idx - eighth) % 3 == 2;
}

TensorType q4_k_m(const ShapeSpec& shape, Part part, std::uint32_t layer_idx, std::uint32_t n_layers) {
  const bool more = gets_more_bits(layer_idx, n_layers);
  // With eight experts the attention is a small share of the file, so more bits there cost little.
  const bool few_experts = shape.n_experts == 8;
  switch (part) {
    case Part::output:
      return TensorType::q6_k;
    case Part::v:
      if (few_experts) return TensorType::q8_0;
      if (more) return TensorType::q6_k;
      return shape.is_llama_70b ? TensorType::q5_k : TensorType::q4_k;
    case Part::k:
      return few_experts ? TensorType::q8_0 : TensorType::q4_k;
    case Part::attn_output:
      return few_experts ? TensorType::q5_k : TensorType::q4_k;
    case Part::down:
      return more ? TensorType::q6_k : TensorType::q4_k;
    default:
      return TensorType::q4_k;
  }
}

/// Collects the tensors of one file.
class SpecList {
 public:
  SpecList(const ShapeSpec& shape, const WeightTypes& types, std::uint32_t n_layers)
      : shape_(shape), types_(types), n_layers_(n_layers) {}

  void set_layer(std::uint32_t layer_idx) { layer_idx_ = layer_idx; }
  std::string in_layer(const char* part) const { return fmt::format("blk.{}.{}", layer_idx_, part); }

  /// Outputs of a matrix of this deviation vary as much as its inputs do.
  void matrix(std::string name, Part part, std::uint64_t n_in, std::uint64_t n_out,
              std::uint64_t n_experts = 0) {
    std::vector<std::uint64_t> dims = {n_in, n_out};
    if (n_experts != 0) dims.push_back(n_experts);
    const bool is_embedding = part == Part::embedding;
    const float std_dev = is_embedding ? 1.0f : 1.0f / std::sqrt(static_cast<float>(n_in));
    add({std::move(name), types_.all.value_or(q4_k_m(shape_, part, layer_idx_, n_layers_)), std::move(dims),
         is_embedding ? Fill::embedding : Fill::random, std_dev, layer_idx_});
  }
  void floats(std::string name, std::vector<std::uint64_t> dims, Fill fill, float std_dev = 0) {
    add({std::move(name), TensorType::f32, std::move(dims), fill, std_dev, layer_idx_});
  }
  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  void add(TensorSpec spec) { specs_.push_back(std::move(spec)); }

  const ShapeSpec& shape_;
  const WeightTypes& types_;
  std::uint32_t n_layers_;
  std::uint32_t layer_idx_ = 0;
  std::vector<TensorSpec> specs_;
};

void add_attention(const ShapeSpec& shape, SpecList& list) {
  const std::uint64_t q_dim = std::uint64_t{shape.n_heads} * shape.head_dim;
  const std::uint64_t kv_dim = std::uint64_t{shape.n_kv_heads} * shape.head_dim;
  list.floats(list.in_layer("attn_norm.weight"), {shape.n_embd}, Fill::ones);
  list.matrix(list.in_layer("attn_q.weight"), Part::q, shape.n_embd, q_dim);
  list.matrix(list.in_layer("attn_k.weight"), Part::k, shape.n_embd, kv_dim);
  list.matrix(list.in_layer("attn_v.weight"), Part::v, shape.n_embd, kv_dim);
  if (shape.has_qkv_bias) {
    constexpr float k_bias_std_dev = 0.1f;
    list.floats(list.in_layer("attn_q.bias"), {q_dim}, Fill::random, k_bias_std_dev);
    list.floats(list.in_layer("attn_k.bias"), {kv_dim}, Fill::random, k_bias_std_dev);
    list.floats(list.in_layer("attn_v.bias"), {kv_dim}, Fill::random, k_bias_std_dev);
  }
  if (shape.has_qk_norm) {
    list.floats(list.in_layer("attn_q_norm.weight"), {shape.head_dim}, Fill::ones);
    list.floats(list.in_layer("attn_k_norm.weight"), {shape.head_dim}, Fill::ones);
  }
  list.matrix(list.in_layer("attn_output.weight"), Part::attn_output, q_dim, shape.n_embd);
}

void add_feed_forward(const ShapeSpec& shape, SpecList& list) {
  list.floats(list.in_layer("ffn_norm.weight"), {shape.n_embd}, Fill::ones);
  if (shape.n_experts == 0) {
    list.matrix(list.in_layer("ffn_gate.weight"), Part::gate, shape.n_embd, shape.n_ff);
    list.matrix(list.in_layer("ffn_up.weight"), Part::up, shape.n_embd, shape.n_ff);
    list.matrix(list.in_layer("ffn_down.weight"), Part::down, shape.n_ff, shape.n_embd);
    return;
  }
  list.floats(list.in_layer("ffn_gate_inp.weight"), {shape.n_embd, shape.n_experts}, Fill::router,
              1.0f / std::sqrt(static_cast<float>(shape.n_embd)));
  const std::uint64_t n_ff = shape.n_ff_expert;
  list.matrix(list.in_layer("ffn_gate_exps.weight"), Part::gate, shape.n_embd, n_ff, shape.n_experts);
  list.matrix(list.in_layer("ffn_up_exps.weight"), Part::up, shape.n_embd, n_ff, shape.n_experts);
  list.matrix(list.in_layer("ffn_down_exps.weight"), Part::down, n_ff, shape.n_embd, shape.n_experts);
}

}  // namespace

std::span<const ShapeSpec> shape_specs() noexcept {
  return k_shapes;
}

const ShapeSpec& find_shape(std::string_view name) {
  std::string known;
  for (const ShapeSpec& shape : k_shapes) {
    if (name == shape.name) return shape;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
  }
  base::fail(ErrorCode::invalid_argument, "there is no shape '{}'; known are {}", name, known);
}

std::vector<TensorSpec> tensor_specs(const ShapeSpec& shape, const WeightTypes& types,
                                     std::uint32_t n_layers) {
  SpecList list(shape, types, n_layers);
  list.matrix("token_embd.weight", Part::embedding, shape.n_embd, shape.n_vocab);
  if (shape.has_rope_factors) list.floats("rope_freqs.weight", {shape.head_dim / 2}, Fill::rope_factors);
  for (std::uint32_t layer_idx = 0; layer_idx < n_layers; ++layer_idx) {
    list.set_layer(layer_idx);
    add_attention(shape, list);
    add_feed_forward(shape, list);
  }
  list.floats("output_norm.weight", {shape.n_embd}, Fill::ones);
  list.matrix("output.weight", Part::output, shape.n_embd, shape.n_vocab);
  return list.take();
}

void add_metadata(const ShapeSpec& shape, const WeightTypes& types, std::uint32_t n_layers,
                  gguf::Metadata& metadata) {
  const auto integer = [&metadata](std::string key, std::uint64_t value) {
    metadata.set(std::move(key), {gguf::ValueType::u32, value});
  };
  const auto real = [&metadata](std::string key, float value) {
    metadata.set(std::move(key), {gguf::ValueType::f32, static_cast<double>(value)});
  };
  const auto key = [&shape](const char* name) { return fmt::format("{}.{}", shape.architecture, name); };
  metadata.set("general.architecture", {gguf::ValueType::string, std::string(shape.architecture)});
  metadata.set("general.name", {gguf::ValueType::string, fmt::format("synthetic {}", shape.name)});
  constexpr std::uint64_t k_file_type_q4_k_m = 15;
  if (!types.all) integer("general.file_type", k_file_type_q4_k_m);
  integer("general.quantization_version", 2);
  integer(key("block_count"), n_layers);
  integer(key("context_length"), shape.n_ctx);
  integer(key("embedding_length"), shape.n_embd);
  integer(key("feed_forward_length"), shape.n_ff);
  integer(key("attention.head_count"), shape.n_heads);
  integer(key("attention.head_count_kv"), shape.n_kv_heads);
  integer(key("attention.key_length"), shape.head_dim);
  integer(key("attention.value_length"), shape.head_dim);
  integer(key("rope.dimension_count"), shape.head_dim);
  real(key("rope.freq_base"), shape.rope_base);
  real(key("attention.layer_norm_rms_epsilon"), shape.norm_eps);
  integer(key("vocab_size"), shape.n_vocab);
  if (shape.n_experts != 0) {
    integer(key("expert_count"), shape.n_experts);
    integer(key("expert_used_count"), shape.n_experts_used);
    if (shape.n_ff_expert != shape.n_ff) integer(key("expert_feed_forward_length"), shape.n_ff_expert);
  }
  add_vocabulary(shape.pre_tokenizer, shape.n_vocab, metadata);
}

}  // namespace sluice::engine
