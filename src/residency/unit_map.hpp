#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/reader.hpp"

namespace sluice::residency {

/// An expert is one to three matrices, its parts, in the order of their use: gate, up and down, or a joint
/// gate_up and down.
constexpr std::size_t k_max_unit_parts = 3;
/// Indexes of the parts of experts whose gate and up are apart.
enum class ExpertPart : std::uint8_t { gate = 0, up = 1, down = 2 };

/// One matrix of each expert of a layer, as a model's graph declares it: [n_out, n_in].
struct UnitPartSpec {
  std::string stem;  ///< Of the tensor's name: "ffn_gate".
  std::uint32_t n_in = 0;
  std::uint32_t n_out = 0;
};

/// A layer that has experts.
struct UnitLayerSpec {
  std::uint32_t layer_idx = 0;
  std::uint32_t n_experts = 0;
  std::vector<UnitPartSpec> parts;  ///< 1 to k_max_unit_parts, in the order of their use.
};

/// Where one part of one expert lies.
struct UnitPart {
  std::uint32_t shard_idx = 0;
  std::uint64_t offset_bytes = 0;
};

/// Shape of one part, equal for all experts of a layer: [n_out, n_in] in a GGUF type.
struct PartShape {
  std::string stem;  ///< Of the tensor's name: "ffn_gate".
  gguf::TensorType type = gguf::TensorType::f32;
  std::uint32_t n_in = 0;
  std::uint32_t n_out = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t bytes() const noexcept { return row_bytes * n_out; }
};

/// The experts of one layer. `slot_offset` says where each part's read window starts inside a slot: windows
/// are aligned outwards, so that direct reads land in place and no byte is copied.
struct LayerUnits {
  std::uint32_t layer_idx = 0;
  std::uint32_t n_experts = 0;
  std::vector<PartShape> shapes;  ///< One per part.
  std::vector<std::array<UnitPart, k_max_unit_parts>> experts;
  std::array<std::uint64_t, k_max_unit_parts> slot_offset{};
  std::uint64_t slot_bytes = 0;    ///< Multiple of the alignment.
  std::uint64_t weight_bytes = 0;  ///< Of one expert, without alignment.
  std::size_t n_parts() const noexcept { return shapes.size(); }
};

/// All experts of a model: the unit map.
struct UnitMap {
  std::vector<LayerUnits> layers;   ///< Only layers that have experts, in order.
  std::vector<int> index_of_layer;  ///< Model layer -> index in `layers`, or -1.
  std::uint64_t n_units() const noexcept;
  std::uint64_t weight_bytes() const noexcept;
};

/// Finds the experts of a model with `n_layers` layers, of which `layers` have experts, in rising order:
/// tensors "blk.N.STEM_exps.weight" that hold all experts of a layer, or the older one-tensor-per-expert form
/// "blk.N.STEM.E.weight". Checks that all experts have the shapes declared. `alignment_bytes` is that of
/// direct reads. Throws Error(invalid_file) naming the tensor that is missing or of another shape.
UnitMap map_units(const gguf::ModelFile& file, std::uint32_t n_layers, std::span<const UnitLayerSpec> layers,
                  std::uint32_t alignment_bytes);

/// Name of the tensor that a part of an expert comes from, for messages.
std::string unit_tensor_name(const gguf::ModelFile& file, const LayerUnits& layer, std::uint32_t expert,
                             std::size_t part);

}  // namespace sluice::residency
