#include "engine/plan/machine_facts.hpp"

#include "base/error.hpp"
#include "base/thread_pool.hpp"
#include "base/units.hpp"
#include "platform/cpu_features.hpp"
#include "platform/memory.hpp"

namespace sluice::engine {
namespace {

/// What the process will still take beside the plan: code pages not yet touched, stacks, the sampler's and
/// the text's buffers, allocator slack. Measured on the built-in model with glibc 2.36 (README's command: 1.3
/// MiB), rounded up.
constexpr std::uint64_t k_process_reserve_bytes = 2 * base::k_mib;

}  // namespace

int thread_count(const OpenOptions& options) {
  if (options.n_threads < 0 || options.n_threads > base::ThreadPool::k_max_threads) {
    base::fail(ErrorCode::invalid_argument, "{} threads were asked for; expected 1 to {}, or 0 to choose",
               options.n_threads, base::ThreadPool::k_max_threads);
  }
  return options.n_threads == 0 ? platform::usable_cpus() : options.n_threads;
}

residency::MachineFacts machine_facts() {
  residency::MachineFacts facts;
  const platform::ProcessMemory own = platform::read_process_memory();
  const platform::MemoryLimits limits = platform::read_memory_limits();
  facts.process_bytes = own.rss_bytes + k_process_reserve_bytes;
  facts.default_budget_bytes = platform::default_budget_bytes(limits, own.rss_bytes);
  const bool by_cgroup = limits.cgroup_limit_bytes && *limits.cgroup_limit_bytes < limits.total_bytes;
  facts.default_budget_source = by_cgroup ? "memory cgroup " + limits.cgroup_path : "available memory";
  return facts;
}

}  // namespace sluice::engine
