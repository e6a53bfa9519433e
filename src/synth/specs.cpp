#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "synth/families.hpp"
#include "synth/shapes.hpp"

// What a shape's numbers and its family's rules say, as tensors and metadata.
namespace sluice::synth {
namespace {

using gguf::TensorType;
using gguf::ValueType;

constexpr bool gets_more_bits(std::uint32_t layer_idx, std::uint32_t n_layers) {
  const std::uint32_t eighth = n_layers / 8;
  return layer_idx < eighth || layer_idx >= 7 * n_layers / 8 || (layer_idx - eighth) % 3 == 2;
}

TensorType type_in_layer(const Types& types, std::uint32_t layer_idx, std::uint32_t n_layers) {
  if (gets_more_bits(layer_idx, n_layers)) return types.more;
  return layer_idx < n_layers / 4 ? types.early : types.usual;
}

/// Blocks of 256 do not fit every row; a type with blocks of 32 and about as many bits does.
TensorType fitting_type(TensorType type, std::uint64_t n_in) {
  if (n_in % gguf::type_traits(type).block_elements == 0) return type;
  switch (type) {
    case TensorType::q4_k:
      return TensorType::q5_0;
    case TensorType::q5_k:
      return TensorType::q5_1;
    case TensorType::q6_k:
      return TensorType::q8_0;
    default:
      return n_in % gguf::type_traits(TensorType::iq4_nl).block_elements == 0 ? TensorType::iq4_nl
                                                                              : TensorType::f16;
  }
}

bool attends_to_all(const ShapeSpec& shape, std::uint32_t layer_idx) {
  return shape.full_attention_interval == 0 ||
         layer_idx % shape.full_attention_interval == shape.full_attention_interval - 1;
}

/// GLM-5.2: the first three layers and then every fourth choose positions, and so does a prediction layer.
bool has_indexer(std::uint32_t layer_idx, bool is_prediction) {
  constexpr std::uint32_t k_n_first = 3, k_interval = 4, k_phase = 2;
  return is_prediction || layer_idx < k_n_first || layer_idx % k_interval == k_phase;
}

class SpecList {
 public:
  SpecList(const ShapeSpec& shape, const WeightTypes& types, std::uint32_t n_layers)
      : shape_(shape), types_(types), n_layers_(n_layers) {}

  std::vector<TensorSpec> make() {
    add_outside(Place::file_begin);
    for (layer_idx_ = 0; layer_idx_ < n_layers_ + shape_.n_prediction_layers; ++layer_idx_) {
      for_each_rule([this](const TensorRule& rule) {
        if (is_in_layer(rule.place)) add(rule, fmt::format("blk.{}.{}", layer_idx_, rule.name));
      });
    }
    layer_idx_ = 0;
    add_outside(Place::file_end);
    return std::move(specs_);
  }

 private:
  template <typename Use>
  void for_each_rule(Use&& use) const {
    for (const std::span<const TensorRule> part : shape_.family->tensors) {
      for (const TensorRule& rule : part) use(rule);
    }
  }

  void add_outside(Place place) {
    for_each_rule([this, place](const TensorRule& rule) {
      if (rule.place == place) add(rule, rule.name);
    });
  }

  bool is_in_layer(Place place) const {
    const bool is_prediction = layer_idx_ >= n_layers_;
    const bool has_experts = shape_.n_experts != 0 && (is_prediction || layer_idx_ >= shape_.n_dense_layers);
    switch (place) {
      case Place::every_layer:
        return true;
      case Place::dense_layers:
        return !has_experts;
      case Place::expert_layers:
        return has_experts;
      case Place::full_attention_layers:
        return attends_to_all(shape_, layer_idx_);
      case Place::other_attention_layers:
        return !attends_to_all(shape_, layer_idx_);
      case Place::indexer_layers:
        return has_indexer(layer_idx_, is_prediction);
      case Place::prediction_layers:
        return is_prediction;
      case Place::file_begin:
      case Place::file_end:
        return false;
    }
    return false;
  }

  std::uint64_t size_of(const Dim& dim) const {
    std::uint64_t size = dim.factor;
    if (dim.a != nullptr) size *= shape_.*dim.a;
    if (dim.b != nullptr) size *= shape_.*dim.b;
    return size;
  }

  void add(const TensorRule& rule, std::string name) {
    TensorSpec spec;
    spec.name = std::move(name);
    for (const Dim& dim : rule.dims) {
      if (dim.factor != 0) spec.dims.push_back(size_of(dim));
    }
    if (rule.types != nullptr) {
      const TensorType type =
          types_.all.value_or(type_in_layer(shape_.mix->*rule.types, layer_idx_, n_layers_));
      spec.type = fitting_type(type, spec.dims[0]);
    }
    spec.fill = rule.fill;
    spec.std_dev = deviation(rule.fill, spec.dims[0]);
    spec.layer_idx = layer_idx_;
    specs_.push_back(std::move(spec));
  }

  static float deviation(Fill fill, std::uint64_t n_in) {
    constexpr float k_bias_std_dev = 0.1f;
    if (fill == Fill::embedding) return 1.0f;
    if (fill == Fill::bias) return k_bias_std_dev;
    // Outputs of a matrix of this deviation vary as much as its inputs do.
    return 1.0f / std::sqrt(static_cast<float>(n_in));
  }

  const ShapeSpec& shape_;
  const WeightTypes& types_;
  std::uint32_t n_layers_;
  std::uint32_t layer_idx_ = 0;
  std::vector<TensorSpec> specs_;
};

gguf::Value u32_value(std::uint64_t value) {
  return {ValueType::u32, value};
}

gguf::Value f32_value(float value) {
  return {ValueType::f32, static_cast<double>(value)};
}

gguf::Value fact_value(const Fact& fact, const ShapeSpec& shape, std::uint32_t n_layers) {
  const auto of_layers = [n_layers](ValueType type, auto values, const auto& value_of) {
    for (std::uint32_t layer_idx = 0; layer_idx < n_layers; ++layer_idx)
      values.push_back(value_of(layer_idx));
    return gguf::Value{ValueType::array, gguf::Array{type, std::move(values)}};
  };
  using Integers = std::vector<std::int32_t>;
  using Truths = std::vector<std::uint8_t>;
  switch (fact.kind) {
    case Fact::Kind::number:
      return fact.real != nullptr ? f32_value(shape.*fact.real) : u32_value(shape.*fact.integer);
    case Fact::Kind::constant:
      return u32_value(static_cast<std::uint64_t>(fact.constant));
    case Fact::Kind::real_constant:
      return f32_value(static_cast<float>(fact.constant));
    case Fact::Kind::truth:
      return {ValueType::boolean, fact.constant != 0};
    case Fact::Kind::text:
      return {ValueType::string, std::string(fact.text)};
    case Fact::Kind::rope_sections: {
      // Pairs that rotate with time, height and width (all alike for text).
      return {ValueType::array, gguf::Array{ValueType::i32, Integers{11, 11, 10, 0}}};
    }
    case Fact::Kind::kv_heads_of_layers:
      return of_layers(ValueType::i32, Integers(), [&shape](std::uint32_t layer_idx) {
        const bool is_full = attends_to_all(shape, layer_idx);
        return static_cast<std::int32_t>(is_full ? shape.n_kv_heads : shape.n_kv_heads_swa);
      });
    case Fact::Kind::sliding_layers:
      return of_layers(ValueType::boolean, Truths(), [&shape](std::uint32_t layer_idx) -> std::uint8_t {
        return attends_to_all(shape, layer_idx) ? 0 : 1;
      });
    case Fact::Kind::indexer_layers:
      return of_layers(ValueType::boolean, Truths(), [](std::uint32_t layer_idx) -> std::uint8_t {
        return has_indexer(layer_idx, /*is_prediction=*/false) ? 1 : 0;
      });
  }
  return {};
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const ShapeSpec& shape, const WeightTypes& types,
                                     std::uint32_t n_layers) {
  return SpecList(shape, types, n_layers).make();
}

void add_metadata(const ShapeSpec& shape, const WeightTypes& types, std::uint32_t n_layers,
                  gguf::Metadata& metadata) {
  const auto key = [&shape](const char* name) {
    return fmt::format("{}.{}", shape.family->architecture, name);
  };
  metadata.set("general.architecture", {ValueType::string, std::string(shape.family->architecture)});
  metadata.set("general.name", {ValueType::string, fmt::format("synthetic {}", shape.name)});
  constexpr std::uint64_t k_file_type_q4_k_m = 15;
  if (!types.all) metadata.set("general.file_type", u32_value(k_file_type_q4_k_m));
  metadata.set("general.quantization_version", u32_value(2));
  const std::uint32_t n_blocks = n_layers + shape.n_prediction_layers;
  metadata.set(key("block_count"), u32_value(n_blocks));
  metadata.set(key("context_length"), u32_value(shape.n_ctx));
  metadata.set(key("embedding_length"), u32_value(shape.n_embd));
  metadata.set(key("attention.head_count"), u32_value(shape.n_heads));
  metadata.set(key("attention.layer_norm_rms_epsilon"), f32_value(shape.norm_eps));
  metadata.set(key("rope.freq_base"), f32_value(shape.rope_base));
  ShapeSpec cut = shape;
  cut.n_dense_layers = std::min(shape.n_dense_layers, n_layers);
  for (const std::span<const Fact> part : shape.family->facts) {
    for (const Fact& fact : part) metadata.set(key(fact.key), fact_value(fact, cut, n_layers));
  }
  add_vocabulary(shape.pre_tokenizer, shape.n_vocab, metadata);
}

}  // namespace sluice::synth
