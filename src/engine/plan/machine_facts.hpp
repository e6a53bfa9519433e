#pragma once

#include <cstdint>

#include "residency/plan.hpp"
#include "sluice/options.hpp"

namespace sluice::engine {

/// What the process will still take beside the plan: code pages not yet touched, stacks, text, guesses,
/// allocator slack; what grows with the model is counted apart. Measured on the built-in model with
/// glibc 2.36 (README's command: 1.3 MiB), rounded up.
constexpr std::uint64_t k_process_reserve_bytes = std::uint64_t{2} << 20;

/// Threads to compute with: what the options ask, or the cores this process may use.
/// Throws Error(invalid_argument) for a number out of range.
int thread_count(const OpenOptions& options);

/// The planner's view of this machine and process right now.
residency::MachineFacts machine_facts();
/// Warns when a default budget may be more than the system will give, because it hides its limits.
void warn_of_unseen_limits();

}  // namespace sluice::engine
