#include "engine/plan/machine_facts.hpp"

#include <algorithm>

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

/// The default budget, and which of the limits it comes from.
void set_default_budget(const platform::MemoryLimits& limits, std::uint64_t own_rss_bytes,
                        residency::MachineFacts& facts) {
  platform::MemoryLimits without_group = limits, without_address_space = limits;
  without_group.cgroup_limit_bytes.reset();
  without_address_space.address_space_limit_bytes.reset();
  const std::uint64_t budget = platform::default_budget_bytes(limits, own_rss_bytes);
  facts.default_budget_bytes = budget;
  facts.default_budget_source = "available memory";
  if (platform::default_budget_bytes(without_group, own_rss_bytes) > budget)
    facts.default_budget_source = "memory cgroup " + limits.cgroup_path;
  if (platform::default_budget_bytes(without_address_space, own_rss_bytes) > budget)
    facts.default_budget_source = "this process's limit on address space";
}

/// What there is in all, and what is free of it, without what this process has.
void set_total(const platform::MemoryLimits& limits, residency::MachineFacts& facts) {
  facts.total_bytes = limits.total_bytes;
  facts.total_source = "this machine";
  facts.free_bytes = limits.available_bytes;
  if (!limits.cgroup_limit_bytes) return;
  const std::uint64_t limit = *limits.cgroup_limit_bytes;
  const std::uint64_t room = limit - std::min(limit, limits.cgroup_used_bytes);
  if (limits.total_bytes == 0 || room < facts.free_bytes) facts.free_bytes = room;
  if (limits.total_bytes == 0 || limit < limits.total_bytes) {
    facts.total_bytes = limit;
    facts.total_source = "the memory cgroup " + limits.cgroup_path;
  }
}

}  // namespace

int thread_count(const OpenOptions& options) {
  static_assert(k_max_threads == base::ThreadPool::k_max_threads);
  if (options.n_threads < 0 || options.n_threads > k_max_threads) {
    base::fail(ErrorCode::invalid_argument, "{} threads were asked for; expected 1 to {}, or 0 to choose",
               options.n_threads, k_max_threads);
  }
  return options.n_threads == 0 ? platform::usable_cpus() : options.n_threads;
}

residency::MachineFacts machine_facts() {
  residency::MachineFacts facts;
  const platform::ProcessMemory own = platform::read_process_memory();
  const platform::MemoryLimits limits = platform::read_memory_limits();
  facts.process_bytes = own.rss_bytes + k_process_reserve_bytes;
  set_default_budget(limits, own.rss_bytes, facts);
  set_total(limits, facts);
  if (facts.total_bytes != 0) facts.free_bytes += own.rss_bytes;
  return facts;
}

}  // namespace sluice::engine
