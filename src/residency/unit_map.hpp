#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/reader.hpp"

namespace sluice::residency {

/// The matrices of one expert, in the order of their use.
enum class ExpertPart : std::uint8_t { gate = 0, up = 1, down = 2 };
constexpr std::size_t k_n_expert_parts = 3;
const char* expert_part_name(ExpertPart part) noexcept;  ///< "ffn_gate", ...

/// Where one part of one expert lies.
struct UnitPart {
  std::uint32_t shard_idx = 0;
  std::uint64_t offset_bytes = 0;
};

/// Shape of one part, equal for all experts of a layer: [n_out, n_in] in a GGUF type.
struct PartShape {
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
  std::array<PartShape, k_n_expert_parts> shapes;
  std::vector<std::array<UnitPart, k_n_expert_parts>> experts;
  std::array<std::uint64_t, k_n_expert_parts> slot_offset{};
  std::uint64_t slot_bytes = 0;    ///< Multiple of the alignment.
  std::uint64_t weight_bytes = 0;  ///< Of one expert, without alignment.
};

/// All experts of a model: the unit map.
struct UnitMap {
  std::vector<LayerUnits> layers;   ///< Only layers that have experts, in order.
  std::vector<int> index_of_layer;  ///< Model layer -> index in `layers`, or -1.
  std::uint64_t n_units() const noexcept;
  std::uint64_t weight_bytes() const noexcept;
};

/// Finds the experts of `n_layers` layers: tensors "blk.N.ffn_*_exps.weight" that hold all experts of a
/// layer, or the older one-tensor-per-expert form "blk.N.ffn_*.E.weight". Checks that all experts of a layer
/// have the shape gate/up [n_ff, n_embd], down [n_embd, n_ff]. `alignment_bytes` is that of direct reads.
/// Throws Error(invalid_file) naming the tensor that is missing or of another shape.
UnitMap map_units(const gguf::ModelFile& file, std::uint32_t n_layers, std::uint32_t n_experts,
                  std::uint32_t n_embd, std::uint32_t n_ff, std::uint32_t alignment_bytes);

/// Name of the tensor a unit's part comes from, for messages.
std::string unit_tensor_name(const gguf::ModelFile& file, std::uint32_t layer_idx, std::uint32_t expert,
                             ExpertPart part);

}  // namespace sluice::residency
