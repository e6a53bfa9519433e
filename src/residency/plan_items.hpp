#pragma once

#include <cstdint>

#include "residency/plan.hpp"

namespace sluice::residency {

/// What the parts of a plan take that its placement does not say. Bytes.
struct PlanParts {
  std::uint64_t process = 0, draft = 0, other_models = 0;
  std::uint64_t alignment = 0;  ///< Of pinned weights.
  std::uint64_t kv = 0, state = 0, scratch = 0, ring = 0, transit = 0;
};

/// Completes the plan of a placement: counts of units and blocks, what is streamed, and the table for people,
/// whose sum is what the plan takes. Pure.
void describe_plan(const ModelFacts& model, const PlanParts& parts, Placement& placement);

}  // namespace sluice::residency
