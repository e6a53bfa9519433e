#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/cgroup.hpp"

namespace sluice::platform {

/// What bounds this process's memory right now. All in bytes.
struct MemoryLimits {
  std::uint64_t total_bytes = 0;      ///< MemTotal.
  std::uint64_t available_bytes = 0;  ///< MemAvailable.
  /// The tightest cgroup (v1 or v2, this group and all ancestors): its limit and what is used of it now, less
  /// reclaimable file cache. Nothing when no group limits memory.
  std::optional<std::uint64_t> cgroup_limit_bytes;
  std::uint64_t cgroup_unreclaimable_bytes = 0;
  std::string cgroup_path;                                 ///< Where that limit stands, for messages.
  std::optional<std::uint64_t> address_space_limit_bytes;  ///< RLIMIT_AS / RLIMIT_DATA when set.
  /// False: the process is in control groups that no mount shows, or /proc does not say, so that there may be
  /// limits which nobody sees.
  bool groups_are_known = true;
};

/// Reads the limits again and again. The groups are found once, when it is made: the table of mounts of a
/// host with many containers takes milliseconds to read, and a process hardly ever moves.
class MemoryReader {
 public:
  /// Reads /proc and the cgroup file systems below `root` (tests pass a folder that imitates them; "" is the
  /// real one).
  explicit MemoryReader(std::string root = "");
  MemoryLimits read() const;

 private:
  std::string root_;
  bool groups_are_known_ = true;      ///< Before the groups, whose search sets it.
  std::vector<ControlGroup> groups_;  ///< Own group first, then its ancestors.
};

/// For those that look once.
MemoryLimits read_memory_limits(const std::string& root = "");

/// Bytes this process may use in total when it asks for nothing special, and what decided it.
struct DefaultBudget {
  enum class Source : std::uint8_t {
    available_memory,
    control_group,
    resource_limit,
    guess,  ///< Nothing is known of the machine.
  };
  std::uint64_t bytes = 0;
  Source source = Source::guess;
};
/// The smallest of what the machine has available, what the cgroup leaves and the resource limits, minus
/// headroom of max(1 GiB, 5 %) for the machine or 5 % for a cgroup (but at least half of what there is
/// remains). `own_rss_bytes` is what the process already holds, which available memory no longer contains.
DefaultBudget default_budget(const MemoryLimits& limits, std::uint64_t own_rss_bytes) noexcept;
inline std::uint64_t default_budget_bytes(const MemoryLimits& limits, std::uint64_t own_rss_bytes) noexcept {
  return default_budget(limits, own_rss_bytes).bytes;
}

/// This process as the kernel counts it.
struct ProcessMemory {
  std::uint64_t rss_bytes = 0;
  std::uint64_t peak_rss_bytes = 0;  ///< VmHWM.
  std::uint64_t swapped_bytes = 0;   ///< VmSwap: of this process, now on the swap drive.
};
/// `root` as for MemoryReader.
ProcessMemory read_process_memory(const std::string& root = "");

/// Bytes the kernel has fetched from storage for this process (/proc/self/io read_bytes); nothing where
/// unknown.
std::optional<std::uint64_t> read_storage_bytes();

/// Anonymous memory mapped once and never moved: page aligned, optionally backed by huge pages. A child of
/// fork() does not have it.
class MappedRegion {
 public:
  MappedRegion() = default;
  /// Throws Error(budget) naming the size when the system refuses.
  /// `prefault` touches every page so that later reads into it never fault. Huge pages are requested for
  /// regions of 4 MiB and more, where rounding up costs little.
  static MappedRegion allocate(std::size_t bytes, bool prefault);
  ~MappedRegion();
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  /// Gives the pages of [offset, offset + bytes) back to the system, keeping the addresses; contents become
  /// zero.
  void release_pages(std::size_t offset, std::size_t bytes) noexcept;
  /// Makes released pages present again; contents of pages that are present stay. False when the system
  /// refuses; the range is released then.
  bool restore_pages(std::size_t offset, std::size_t bytes) noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::platform
