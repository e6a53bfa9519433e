#include "engine/model/on_gpu.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::engine {

void refuse_streaming(const residency::Placement& placement) {
  const Plan& plan = placement.plan;
  const bool keeps_blocks = std::find(placement.block_is_pinned.begin(), placement.block_is_pinned.end(),
                                      false) == placement.block_is_pinned.end();
  if (plan.n_cached_units == plan.n_units && keeps_blocks && !placement.embedding_on_drive) return;
  base::fail(ErrorCode::budget,
             "the GPU runs only models that fit the memory whole, and {} do not hold this one; raise "
             "--memory, or run "
             "on the CPU, which streams",
             base::format_bytes(plan.budget_bytes));
}

std::vector<const gguf::TensorInfo*> expert_tensors(const Prepared& prepared) {
  std::vector<const gguf::TensorInfo*> found;
  for (const residency::LayerUnits& layer : prepared.units.layers) {
    for (const residency::PartShape& shape : layer.shapes) {
      const std::string name = fmt::format("blk.{}.{}_exps.weight", layer.layer_idx, shape.stem);
      found.push_back(prepared.file.find_tensor(name));
      if (found.back() != nullptr && layer.n_parts() == residency::k_max_unit_parts) continue;
      base::fail(
          ErrorCode::unsupported,
          "{}: the GPU runs only experts that lie in three tensors for gate, up and down, and {} is none of "
          "them; run on the CPU",
          prepared.file.metadata.source_name, name);
    }
  }
  return found;
}

std::vector<kernels::RoutedExperts> place_experts(const Prepared& prepared,
                                                  const residency::WeightStore& store, kernels::Ops& ops) {
  const std::vector<const gguf::TensorInfo*> tensors = expert_tensors(prepared);
  std::vector<kernels::RoutedExperts> placed(prepared.units.layers.size());
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const residency::LayerUnits& layer = prepared.units.layers[i];
    kernels::Weight* const parts[] = {&placed[i].gate, &placed[i].up, &placed[i].down};
    for (std::size_t part = 0; part < residency::k_max_unit_parts; ++part) {
      const residency::PartShape& shape = layer.shapes[part];
      kernels::Weight all{store.find(*tensors[i * residency::k_max_unit_parts + part]), shape.type,
                          shape.n_in, layer.n_experts * shape.n_out, shape.row_bytes};
      ops.place(all);
      all.n_out = shape.n_out;
      *parts[part] = all;
    }
  }
  return placed;
}

}  // namespace sluice::engine
