#include "engine/plan/machine_facts.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/thread_pool.hpp"
#include "base/units.hpp"
#include "platform/cpu_features.hpp"
#include "platform/memory.hpp"

namespace sluice::engine {
namespace {

/// What decided the default budget, for messages.
std::string describe_source(const platform::MemoryLimits& limits, platform::DefaultBudget::Source source) {
  using Source = platform::DefaultBudget::Source;
  if (source == Source::control_group) return "memory cgroup " + limits.cgroup_path;
  const std::string unseen = limits.groups_are_known ? "" : "; limits of control groups cannot be seen here";
  if (source == Source::resource_limit) return "this process's limit on address space" + unseen;
  if (source == Source::guess) return "a guess, /proc does not tell the machine's memory" + unseen;
  return "available memory" + unseen;
}

/// What there is in all, and what is free of it, without what this process has.
void set_total(const platform::MemoryLimits& limits, residency::MachineFacts& facts) {
  facts.total_bytes = limits.total_bytes;
  facts.total_source = "this machine";
  facts.free_bytes = limits.available_bytes;
  if (!limits.cgroup_limit_bytes) return;
  const std::uint64_t limit = *limits.cgroup_limit_bytes;
  const std::uint64_t room = limit - std::min(limit, limits.cgroup_unreclaimable_bytes);
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
  const platform::DefaultBudget budget = platform::default_budget(limits, own.rss_bytes);
  facts.default_budget_bytes = budget.bytes;
  facts.default_budget_source = describe_source(limits, budget.source);
  set_total(limits, facts);
  if (facts.total_bytes != 0) facts.free_bytes += own.rss_bytes;
  return facts;
}

void warn_of_unseen_limits() {
  const platform::MemoryLimits limits = platform::read_memory_limits();
  if (limits.total_bytes == 0) {
    base::warn(
        "/proc does not tell how much memory the machine has, so the default budget is a guess; give "
        "--memory");
  } else if (!limits.groups_are_known) {
    base::warn(
        "the process is in a control group whose limit cannot be seen (cgroups are not mounted here); where "
        "that limit is below the machine's memory, give --memory");
  }
}

}  // namespace sluice::engine
