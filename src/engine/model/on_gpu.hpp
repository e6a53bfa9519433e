#pragma once

#include <vector>

#include "engine/model/prepare.hpp"
#include "kernels/ops.hpp"
#include "residency/plan.hpp"
#include "residency/weight_store.hpp"

// Models whose weights are all in the GPU's memory.
namespace sluice::engine {

/// Throws Error(budget) when the plan leaves something on the drive.
void refuse_streaming(const residency::Placement& placement);

/// Of each layer with experts: gate, up and down. Throws Error(unsupported) when each expert is a tensor of
/// its own, or gate and up are one.
std::vector<const gguf::TensorInfo*> expert_tensors(const Prepared& prepared);

/// Copies the experts, which the store holds, to the device.
std::vector<kernels::RoutedExperts> place_experts(const Prepared& prepared,
                                                  const residency::WeightStore& store, kernels::Ops& ops);

}  // namespace sluice::engine
