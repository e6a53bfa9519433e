#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "platform/memory.hpp"

namespace sluice::platform {

/// Counters that only grow. Two readings tell what is going on now.
struct HealthCounters {
  std::optional<std::uint64_t> n_swapped_in, n_swapped_out;  ///< Pages, of the whole machine.
  std::optional<std::uint64_t> n_throttles;  ///< Times that a core was slowed down because it was hot.
};

/// How this machine is and what this process may do on it, as far as that slows a program that streams from a
/// drive. What the system does not say is empty.
struct HealthFacts {
  int kernel_major = 0, kernel_minor = 0;  ///< 0.0: unknown.
  MemoryLimits memory;
  DefaultBudget default_budget;
  int n_machine_cpus = 0;                 ///< Online.
  int n_usable_cpus = 0;                  ///< By affinity and quota.
  double cpu_quota = 0;                   ///< Cores' worth of time; 0: no quota.
  std::optional<double> load;             ///< Processes that wanted to run, average of the last minute.
  std::optional<double> memory_pressure;  ///< Percent of the last 10 s that something waited for memory.
  std::uint64_t swap_total_bytes = 0, swap_free_bytes = 0;
  std::string huge_pages;                          ///< "always", "madvise", "never".
  std::optional<std::uint64_t> io_uring_disabled;  ///< The sysctl: 0 no, 1 for some, 2 for all.
  std::optional<std::uint64_t> max_open_files;     ///< Empty: no limit.
  std::optional<std::uint64_t> max_locked_bytes;   ///< Empty: no limit.
  std::optional<double> hottest_celsius;           ///< Of all thermal zones.
  HealthCounters counters;
};

/// Reads /proc and /sys below `root` (tests pass a folder that imitates them; "" is the real one). Limits of
/// the process and its cores are always its own.
HealthFacts read_health(const std::string& root = "");
HealthCounters read_health_counters(const std::string& root = "");

/// The place where a file lies.
struct PlaceFacts {
  std::string file_system;  ///< "ext4", "nfs4".
  std::string mount_point;
  std::optional<std::uint64_t> free_bytes, total_bytes;
};
/// For an absolute path without symbolic links.
PlaceFacts read_place(const std::string& path, const std::string& root = "");

}  // namespace sluice::platform
