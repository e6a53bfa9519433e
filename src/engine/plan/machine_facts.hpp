#pragma once

#include "residency/plan.hpp"
#include "sluice/options.hpp"

namespace sluice::engine {

/// Threads to compute with: what the options ask, or the cores this process may use.
/// Throws Error(invalid_argument) for a number out of range.
int thread_count(const OpenOptions& options);

/// The planner's view of this machine and process right now.
residency::MachineFacts machine_facts();
/// Warns when a default budget may be more than the system will give, because it hides its limits.
void warn_of_unseen_limits();

}  // namespace sluice::engine
