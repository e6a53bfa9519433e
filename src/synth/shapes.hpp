#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.hpp"
#include "gguf/types.hpp"

namespace sluice::synth {

struct Family;
struct Mix;

/// The numbers that a model's tensors and metadata follow from, as its published configuration gives them;
/// 0 for what its family does not use. Which tensors these are is said by the family's rules.
struct ShapeSpec {
  const char* name;
  const Family* family;
  const Mix* mix;
  const char* pre_tokenizer;
  std::uint32_t n_layers;
  std::uint32_t n_prediction_layers = 0;  ///< Behind the others, for speculation; block_count includes them.
  std::uint32_t n_dense_layers = 0;       ///< The first layers, without experts.
  std::uint32_t full_attention_interval = 0;  ///< Every so manieth layer attends to all positions.
  std::uint32_t n_embd;
  std::uint32_t n_heads;
  std::uint32_t n_kv_heads;
  std::uint32_t head_dim;
  std::uint32_t n_kv_heads_swa = 0;  ///< Of layers with a sliding window, where they differ.
  std::uint32_t head_dim_swa = 0;
  std::uint32_t sliding_window = 0;
  std::uint32_t n_rot = 0;
  std::uint32_t n_ff = 0;         ///< Dense width; where there are experts only metadata for some families.
  std::uint32_t n_ff_expert = 0;  ///< Also of a shared expert.
  std::uint32_t n_experts = 0;    ///< 0: dense.
  std::uint32_t n_experts_used = 0;
  std::uint32_t n_vocab;
  std::uint32_t n_ctx;
  float rope_base;
  float norm_eps;
  float expert_scale = 0;
  float yarn_factor = 0;
  // Latent attention.
  std::uint32_t q_rank = 0;
  std::uint32_t kv_rank = 0;
  std::uint32_t kv_rank_rope = 0;  ///< kv_rank and the rotated part.
  std::uint32_t mla_key = 0;
  std::uint32_t mla_key_unrotated = 0;
  std::uint32_t mla_value = 0;
  // Gated delta rule.
  std::uint32_t ssm_inner = 0;
  std::uint32_t ssm_heads = 0;
  std::uint32_t ssm_qkv = 0;
};

/// How a tensor's values are made.
enum class Fill : std::uint8_t {
  random,  ///< Outputs vary as much as inputs do.
  ones,
  minus_ones,         ///< Logarithms of decay.
  bias,               ///< Random and small.
  embedding,          ///< Random; rows may share a constant part.
  router,             ///< Random; rows may have a component along that part.
  rope_factors,       ///< Divisors of the rotation frequencies: Llama 3.1's scaling.
  proportional_rope,  ///< The same for heads of which only the first quarter rotates.
};

struct TensorSpec {
  std::string name;
  gguf::TensorType type = gguf::TensorType::f32;
  std::vector<std::uint64_t> dims;  ///< Contiguous dimension first.
  Fill fill = Fill::random;
  float std_dev = 0;
  std::uint32_t layer_idx = 0;
};

/// The types of a file's matrices: one for all, or the mix of published 4-bit files.
struct WeightTypes {
  std::optional<gguf::TensorType> all;
};

std::span<const ShapeSpec> shape_specs() noexcept;
/// Throws Error(invalid_argument) listing the known names.
const ShapeSpec& find_shape(std::string_view name);
const char* architecture_name(const ShapeSpec& shape) noexcept;

/// All tensors of the first `n_layers` layers and of the prediction layers, in the order of a file. The mix
/// is the one that a model of so many layers would get, so a cut has about the whole model's share of each
/// type. Where rows are too short for a type's blocks, the type that llama.cpp's quantizer would fall back to
/// takes its place.
std::vector<TensorSpec> tensor_specs(const ShapeSpec& shape, const WeightTypes& types,
                                     std::uint32_t n_layers);

/// Adds hyper-parameters and the vocabulary.
void add_metadata(const ShapeSpec& shape, const WeightTypes& types, std::uint32_t n_layers,
                  gguf::Metadata& metadata);
/// Adds a byte-level BPE vocabulary of `n_vocab` tokens: all bytes, some short merges, the
/// special tokens of the family, and tokens that no text encodes to. Requires a pre-tokenizer that a shape
/// names.
void add_vocabulary(std::string_view pre_tokenizer, std::uint32_t n_vocab, gguf::Metadata& metadata);

}  // namespace sluice::synth
