#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.hpp"
#include "gguf/types.hpp"

namespace sluice::engine {

/// The numbers that a model's tensors follow from, as its published configuration gives them.
struct ShapeSpec {
  const char* name;
  const char* architecture;
  const char* pre_tokenizer;
  std::uint32_t n_layers;
  std::uint32_t n_embd;
  std::uint32_t n_heads;
  std::uint32_t n_kv_heads;
  std::uint32_t head_dim;
  std::uint32_t n_ff;         ///< Dense width; with experts only metadata.
  std::uint32_t n_ff_expert;  ///< 0: no experts.
  std::uint32_t n_experts;
  std::uint32_t n_experts_used;
  std::uint32_t n_vocab;
  std::uint32_t n_ctx;
  float rope_base;
  float norm_eps;
  bool has_qk_norm;
  bool has_qkv_bias;
  bool has_rope_factors;  ///< Llama 3.1's rope_freqs.weight.
  bool is_llama_70b;      ///< Its Q4_K_M files spend more on attn_v.
};

/// How a tensor's values are made.
enum class Fill : std::uint8_t {
  random,
  ones,
  embedding,     ///< Random; rows may share a constant part.
  router,        ///< Random; rows may have a component along that part.
  rope_factors,  ///< Divisors of the rotation frequencies.
};

struct TensorSpec {
  std::string name;
  gguf::TensorType type = gguf::TensorType::f32;
  std::vector<std::uint64_t> dims;  ///< Contiguous dimension first.
  Fill fill = Fill::random;
  float std_dev = 0;
  std::uint32_t layer_idx = 0;
};

/// The types of a file's matrices: one for all, or the mix called Q4_K_M.
struct WeightTypes {
  std::optional<gguf::TensorType> all;
};

std::span<const ShapeSpec> shape_specs() noexcept;
/// Throws Error(invalid_argument) listing the known names.
const ShapeSpec& find_shape(std::string_view name);

/// All tensors of the first `n_layers` layers, in the order of a file. The mix is the one that a model of so
/// many layers would get, so a cut has about the whole model's share of each type.
std::vector<TensorSpec> tensor_specs(const ShapeSpec& shape, const WeightTypes& types,
                                     std::uint32_t n_layers);

/// Adds hyper-parameters and the vocabulary.
void add_metadata(const ShapeSpec& shape, const WeightTypes& types, std::uint32_t n_layers,
                  gguf::Metadata& metadata);
/// Adds a byte-level BPE vocabulary of `n_vocab` tokens: all bytes, some short merges, the
/// special tokens of the family, and tokens that no text encodes to.
void add_vocabulary(std::string_view pre_tokenizer, std::uint32_t n_vocab, gguf::Metadata& metadata);

}  // namespace sluice::engine
