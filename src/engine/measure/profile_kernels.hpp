#pragma once

#include <atomic>
#include <vector>

#include "base/thread_pool.hpp"
#include "platform/cpu_features.hpp"
#include "sluice/profile.hpp"

namespace sluice::engine {

/// How fast all threads of the pool together multiply weights of the common types with 1 and with 64 rows of
/// activations. Every thread works on weights that fit its second-level cache, so arithmetic is the limit and
/// not memory. Takes about `seconds` for all. Stops early, leaving the rest out, when `cancel` is raised.
std::vector<KernelRate> measure_kernels(base::ThreadPool& pool, platform::Isa isa, double seconds,
                                        const std::atomic<bool>* cancel);

}  // namespace sluice::engine
