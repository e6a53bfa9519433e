#include "residency/unit_map.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "storage/read_queue.hpp"

namespace sluice::residency {
namespace {

std::string merged_name(std::uint32_t layer_idx, ExpertPart part) {
  return fmt::format("blk.{}.{}_exps.weight", layer_idx, expert_part_name(part));
}

std::string single_name(std::uint32_t layer_idx, std::uint32_t expert, ExpertPart part) {
  return fmt::format("blk.{}.{}.{}.weight", layer_idx, expert_part_name(part), expert);
}

void expect_dims(const gguf::TensorInfo& tensor, std::uint64_t n_in, std::uint64_t n_out,
                 std::uint64_t n_experts) {
  if (tensor.dims[0] == n_in && tensor.dims[1] == n_out && tensor.dims[2] == n_experts && tensor.dims[3] == 1)
    return;
  base::fail(ErrorCode::invalid_file,
             "tensor {}: expected shape [{}, {}, {}], found [{}, {}, {}, {}]; the file is inconsistent",
             tensor.name, n_in, n_out, n_experts, tensor.dims[0], tensor.dims[1], tensor.dims[2],
             tensor.dims[3]);
}

/// Fills one part of every expert of a layer.
void map_part(const gguf::ModelFile& file, LayerUnits& layer, ExpertPart part, std::uint32_t n_in,
              std::uint32_t n_out) {
  const auto idx = static_cast<std::size_t>(part);
  PartShape& shape = layer.shapes[idx];
  shape.n_in = n_in;
  shape.n_out = n_out;
  if (const auto* tensor = file.find_tensor(merged_name(layer.layer_idx, part))) {
    expect_dims(*tensor, n_in, n_out, layer.n_experts);
    shape.type = tensor->type;
    shape.row_bytes = gguf::row_bytes(tensor->type, n_in);
    for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
      layer.experts[expert][idx] = {tensor->shard_idx, tensor->offset_bytes + expert * shape.bytes()};
    }
    return;
  }
  for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
    const auto* tensor = file.find_tensor(single_name(layer.layer_idx, expert, part));
    if (tensor == nullptr) {
      base::fail(
          ErrorCode::invalid_file,
          "{}: required tensor {} (or {}) is missing; the file is incomplete or of another architecture",
          file.metadata.source_name, merged_name(layer.layer_idx, part),
          single_name(layer.layer_idx, expert, part));
    }
    expect_dims(*tensor, n_in, n_out, 1);
    if (expert == 0) {
      shape.type = tensor->type;
      shape.row_bytes = gguf::row_bytes(tensor->type, n_in);
    } else if (tensor->type != shape.type) {
      base::fail(ErrorCode::unsupported,
                 "tensor {}: type {} differs from expert 0's type {}; experts of one layer must share a type",
                 tensor->name, gguf::type_name(tensor->type), gguf::type_name(shape.type));
    }
    layer.experts[expert][idx] = {tensor->shard_idx, tensor->offset_bytes};
  }
}

}  // namespace

const char* expert_part_name(ExpertPart part) noexcept {
  switch (part) {
    case ExpertPart::gate:
      return "ffn_gate";
    case ExpertPart::up:
      return "ffn_up";
    case ExpertPart::down:
      return "ffn_down";
  }
  return "";
}

std::uint64_t UnitMap::n_units() const noexcept {
  std::uint64_t total = 0;
  for (const auto& layer : layers) total += layer.n_experts;
  return total;
}

std::uint64_t UnitMap::weight_bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& layer : layers) total += layer.weight_bytes * layer.n_experts;
  return total;
}

UnitMap map_units(const gguf::ModelFile& file, std::uint32_t n_layers, std::uint32_t n_experts,
                  std::uint32_t n_embd, std::uint32_t n_ff, std::uint32_t alignment_bytes) {
  UnitMap map;
  map.index_of_layer.assign(n_layers, -1);
  if (n_experts == 0) return map;
  for (std::uint32_t layer_idx = 0; layer_idx < n_layers; ++layer_idx) {
    LayerUnits layer;
    layer.layer_idx = layer_idx;
    layer.n_experts = n_experts;
    layer.experts.resize(n_experts);
    map_part(file, layer, ExpertPart::gate, n_embd, n_ff);
    map_part(file, layer, ExpertPart::up, n_embd, n_ff);
    map_part(file, layer, ExpertPart::down, n_ff, n_embd);
    for (std::size_t part = 0; part < k_n_expert_parts; ++part) {
      std::uint64_t window_bytes = 0;
      for (const auto& expert : layer.experts) {
        const auto window =
            storage::read_window(expert[part].offset_bytes, layer.shapes[part].bytes(), alignment_bytes);
        window_bytes = std::max(window_bytes, window.length);
      }
      layer.slot_offset[part] = layer.slot_bytes;
      layer.slot_bytes += window_bytes;
      layer.weight_bytes += layer.shapes[part].bytes();
    }
    map.index_of_layer[layer_idx] = static_cast<int>(map.layers.size());
    map.layers.push_back(std::move(layer));
  }
  return map;
}

std::string unit_tensor_name(const gguf::ModelFile& file, std::uint32_t layer_idx, std::uint32_t expert,
                             ExpertPart part) {
  std::string name = merged_name(layer_idx, part);
  if (file.find_tensor(name) != nullptr) return fmt::format("{} (expert {})", name, expert);
  return single_name(layer_idx, expert, part);
}

}  // namespace sluice::residency
