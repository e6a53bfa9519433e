#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "gguf/types.hpp"
#include "synth/shapes.hpp"

namespace sluice::synth {

/// A type that depends on the layer. llama.cpp's quantizer gives more bits to what suffers most in the first
/// and the last eighth of the layers and in every third between them.
struct Types {
  gguf::TensorType usual, more, early;
  constexpr Types(gguf::TensorType all) : Types(all, all) {}  // NOLINT: a type is a mix of one
  constexpr Types(gguf::TensorType usual_type, gguf::TensorType more_type)
      : Types(usual_type, more_type, usual_type) {}
  /// `early_type`: in the first quarter, where not `more_type`.
  constexpr Types(gguf::TensorType usual_type, gguf::TensorType more_type, gguf::TensorType early_type)
      : usual(usual_type), more(more_type), early(early_type) {}
};

/// The types of a 4-bit file by the use of the matrix.
struct Mix {
  Types rest = gguf::TensorType::q4_k;
  Types embedding = gguf::TensorType::q4_k;
  Types output = gguf::TensorType::q4_k;
  Types k = gguf::TensorType::q4_k;
  Types v = gguf::TensorType::q4_k;
  Types qkv = gguf::TensorType::q4_k;
  Types attn_output = gguf::TensorType::q4_k;
  Types down = gguf::TensorType::q4_k;
  Types expert_down = gguf::TensorType::q4_k;
  Types expert_gate_up = gguf::TensorType::q4_k;
};

/// A product of numbers of the shape; 0 when there is no such dimension.
struct Dim {
  std::uint32_t factor = 0;
  std::uint32_t ShapeSpec::*a = nullptr;
  std::uint32_t ShapeSpec::*b = nullptr;
};

/// Where a tensor is found.
enum class Place : std::uint8_t {
  file_begin,
  every_layer,
  dense_layers,
  expert_layers,
  full_attention_layers,   ///< Every full_attention_interval-th.
  other_attention_layers,  ///< Recurrent or with a sliding window.
  indexer_layers,          ///< Those that choose which positions they and their followers attend to.
  prediction_layers,
  file_end,
};

struct TensorRule {
  const char* name;  ///< Without the layer.
  Place place;
  std::array<Dim, 3> dims;
  Types Mix::*types;  ///< Null: f32.
  Fill fill = Fill::random;
};

/// One key of the metadata below the architecture's name.
struct Fact {
  const char* key;
  std::uint32_t ShapeSpec::*integer = nullptr;
  float ShapeSpec::*real = nullptr;
  /// What the value is when it is no number of the shape.
  enum class Kind : std::uint8_t {
    number,
    constant,
    real_constant,
    truth,
    text,
    rope_sections,
    kv_heads_of_layers,
    sliding_layers,
    indexer_layers,
  } kind = Kind::number;
  double constant = 0;
  const char* text = nullptr;
};

/// Models with the same tensors and keys.
struct Family {
  const char* architecture;
  std::span<const std::span<const TensorRule>> tensors;
  std::span<const std::span<const Fact>> facts;
};

extern const Family k_llama3_family, k_mixtral_family, k_qwen2_family, k_qwen3_family, k_qwen3_moe_family,
    k_gpt_oss_family, k_glm4_moe_family, k_deepseek2_family, k_glm_dsa_family, k_qwen3_next_family,
    k_qwen35_moe_family, k_qwen35_family, k_gemma4_family;

}  // namespace sluice::synth
