#include "residency/unit_map.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.hpp"
#include "base/error.hpp"
#include "storage/read_queue.hpp"

namespace sluice::residency {
namespace {

std::string merged_name(std::uint32_t layer_idx, std::string_view stem) {
  return fmt::format("blk.{}.{}_exps.weight", layer_idx, stem);
}

std::string single_name(std::uint32_t layer_idx, std::uint32_t expert, std::string_view stem) {
  return fmt::format("blk.{}.{}.{}.weight", layer_idx, stem, expert);
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
void map_part(const gguf::ModelFile& file, LayerUnits& layer, std::size_t part) {
  PartShape& shape = layer.shapes[part];
  if (const auto* tensor = file.find_tensor(merged_name(layer.layer_idx, shape.stem))) {
    expect_dims(*tensor, shape.n_in, shape.n_out, layer.n_experts);
    shape.type = tensor->type;
    shape.row_bytes = gguf::row_bytes(tensor->type, shape.n_in);
    for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
      layer.experts[expert][part] = {tensor->shard_idx, tensor->offset_bytes + expert * shape.bytes()};
    }
    return;
  }
  for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
    const auto* tensor = file.find_tensor(single_name(layer.layer_idx, expert, shape.stem));
    if (tensor == nullptr) {
      base::fail(
          ErrorCode::invalid_file,
          "{}: required tensor {} (or {}) is missing; the file is incomplete or of another architecture",
          file.metadata.source_name, merged_name(layer.layer_idx, shape.stem),
          single_name(layer.layer_idx, expert, shape.stem));
    }
    expect_dims(*tensor, shape.n_in, shape.n_out, 1);
    if (expert == 0) {
      shape.type = tensor->type;
      shape.row_bytes = gguf::row_bytes(tensor->type, shape.n_in);
    } else if (tensor->type != shape.type) {
      base::fail(ErrorCode::unsupported,
                 "tensor {}: type {} differs from expert 0's type {}; experts of one layer must share a type",
                 tensor->name, gguf::type_name(tensor->type), gguf::type_name(shape.type));
    }
    layer.experts[expert][part] = {tensor->shard_idx, tensor->offset_bytes};
  }
}

LayerUnits map_layer(const gguf::ModelFile& file, const UnitLayerSpec& spec, std::uint32_t alignment_bytes) {
  SLUICE_CHECK(!spec.parts.empty() && spec.parts.size() <= k_max_unit_parts);
  LayerUnits layer;
  layer.layer_idx = spec.layer_idx;
  layer.n_experts = spec.n_experts;
  layer.experts.resize(spec.n_experts);
  for (const UnitPartSpec& part : spec.parts)
    layer.shapes.push_back({part.stem, gguf::TensorType::f32, part.n_in, part.n_out, 0});
  for (std::size_t part = 0; part < layer.n_parts(); ++part) {
    map_part(file, layer, part);
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
  return layer;
}

}  // namespace

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

UnitMap map_units(const gguf::ModelFile& file, std::uint32_t n_layers, std::span<const UnitLayerSpec> layers,
                  std::uint32_t alignment_bytes) {
  UnitMap map;
  map.index_of_layer.assign(n_layers, -1);
  for (const UnitLayerSpec& spec : layers) {
    SLUICE_CHECK(spec.layer_idx < n_layers);
    SLUICE_CHECK(map.layers.empty() || map.layers.back().layer_idx < spec.layer_idx);
    map.index_of_layer[spec.layer_idx] = static_cast<int>(map.layers.size());
    map.layers.push_back(map_layer(file, spec, alignment_bytes));
  }
  return map;
}

std::string unit_tensor_name(const gguf::ModelFile& file, const LayerUnits& layer, std::uint32_t expert,
                             std::size_t part) {
  const std::string& stem = layer.shapes[part].stem;
  std::string name = merged_name(layer.layer_idx, stem);
  if (file.find_tensor(name) != nullptr) return fmt::format("{} (expert {})", name, expert);
  return single_name(layer.layer_idx, expert, stem);
}

}  // namespace sluice::residency
