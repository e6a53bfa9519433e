#pragma once

#include <cstdint>

#include "kernels/ops.hpp"
#include "kernels/vector_math.hpp"

namespace sluice::kernels {

/// Groups of experts that a router may have.
constexpr std::uint32_t k_max_expert_groups = 256;

/// Routes one row. `probabilities` and `keys` are work space of n_experts floats each. Requires
/// 1 <= params.n_used <= n_experts <= 65536, with groups that many in the chosen ones, at most
/// k_max_expert_groups groups, and params.n_group_best experts in each. A NaN logit counts as lower than
/// every number; an infinite one takes all the weight. Weights are sums and quotients in double, so they
/// depend on the row alone.
void route_row(const VectorMath& math, const float* logits, std::uint32_t n_experts,
               const RouterParams& params, float* probabilities, float* keys, std::uint16_t* ids,
               float* weights) noexcept;

}  // namespace sluice::kernels
