#include "platform/memory.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/checked.hpp"
#include "base/units.hpp"
#include "platform/cgroup.hpp"
#include "platform/text_files.hpp"

namespace sluice::platform {
namespace {

// v1 writes "no limit" as the largest multiple of a page below 2^63; nothing real comes near this.
constexpr std::uint64_t k_unlimited_bytes = 1ull << 60;
constexpr std::uint64_t k_machine_headroom_bytes = base::k_gib;
constexpr std::uint64_t k_headroom_divisor = 20;  // 5 %.
// When nothing at all is known: small enough for any machine that runs language models.
constexpr std::uint64_t k_blind_budget_bytes = base::k_gib;

std::uint64_t minus(std::uint64_t a, std::uint64_t b) noexcept {
  return a > b ? a - b : 0;
}

std::uint64_t plus(std::uint64_t a, std::uint64_t b) noexcept {
  return base::checked_add(a, b).value_or(UINT64_MAX);
}

// `there` less the headroom, but never less than half of it.
std::uint64_t keep_headroom(std::uint64_t there, std::uint64_t headroom) noexcept {
  return std::max(minus(there, headroom), there / 2);
}

std::uint64_t cgroup_budget(std::uint64_t limit, std::uint64_t used, std::uint64_t own_rss) noexcept {
  const std::uint64_t others = minus(used, own_rss);
  return keep_headroom(minus(limit, others), limit / k_headroom_divisor);
}

struct GroupMemory {
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0;
};

// Clean and dirty file pages are given up before anything is killed, so they are not counted as used.
std::uint64_t reclaimable_bytes(const std::string& folder, int version) {
  const std::string stat = read_text_file(folder + "/memory.stat").value_or("");
  const auto sum = [&](const char* inactive, const char* active) -> std::optional<std::uint64_t> {
    const auto a = find_number(stat, inactive), b = find_number(stat, active);
    if (!a && !b) return std::nullopt;
    return plus(a.value_or(0), b.value_or(0));
  };
  // v1 has both this group's own numbers and, with "total_", those of its whole subtree, as the usage is.
  std::optional<std::uint64_t> bytes;
  if (version == 1) bytes = sum("total_inactive_file", "total_active_file");
  if (!bytes) bytes = sum("inactive_file", "active_file");
  return bytes.value_or(0);
}

std::optional<GroupMemory> read_group(const std::string& root, const ControlGroup& group) {
  const std::string folder = root + group.path;
  std::optional<std::uint64_t> limit, used;
  if (group.version == 2) {
    limit = read_number(folder + "/memory.max");  // "max" is no number: no limit.
    // Above memory.high a group is throttled until it crawls, so it bounds as well as the hard limit.
    const auto high = read_number(folder + "/memory.high");
    if (high && (!limit || *high < *limit)) limit = high;
    used = read_number(folder + "/memory.current");
  } else {
    limit = read_number(folder + "/memory.limit_in_bytes");
    // What a group is asked to shrink to when others need memory: the administrator's wish bounds us as well.
    const auto soft = read_number(folder + "/memory.soft_limit_in_bytes");
    if (soft && (!limit || *soft < *limit)) limit = soft;
    used = read_number(folder + "/memory.usage_in_bytes");
  }
  if (!limit || *limit >= k_unlimited_bytes) return std::nullopt;
  return GroupMemory{*limit, minus(used.value_or(0), reclaimable_bytes(folder, group.version))};
}

std::optional<std::uint64_t> address_space_limit() {
  std::optional<std::uint64_t> limit;
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    struct rlimit value {};
    if (getrlimit(resource, &value) != 0 || value.rlim_cur == RLIM_INFINITY) continue;
    const std::uint64_t bytes = value.rlim_cur;
    limit = std::min(limit.value_or(bytes), bytes);
  }
  return limit;
}

}  // namespace

MemoryReader::MemoryReader(std::string root)
    : root_(std::move(root)), groups_(control_groups(root_, "memory", &groups_are_known_)) {}

MemoryLimits read_memory_limits(const std::string& root) {
  return MemoryReader(root).read();
}

MemoryLimits MemoryReader::read() const {
  MemoryLimits limits;
  limits.groups_are_known = groups_are_known_;
  const std::string meminfo = read_text_file(root_ + "/proc/meminfo").value_or("");
  limits.total_bytes = find_number(meminfo, "MemTotal:").value_or(0);
  const auto available = find_number(meminfo, "MemAvailable:");
  if (available) {
    limits.available_bytes = *available;
  } else {  // Kernels before 3.14: free and cached pages come close.
    limits.available_bytes =
        plus(find_number(meminfo, "MemFree:").value_or(0), find_number(meminfo, "Cached:").value_or(0));
  }
  std::uint64_t tightest_room = UINT64_MAX;
  for (const ControlGroup& group : groups_) {
    const auto memory = read_group(root_, group);
    if (!memory) continue;
    // A limit at or above what the machine has binds nothing.
    if (limits.total_bytes != 0 && memory->limit_bytes >= limits.total_bytes) continue;
    // Every group here contains this process, so its own share does not change which one leaves least.
    const std::uint64_t limit = memory->limit_bytes;
    const std::uint64_t room = minus(limit - limit / k_headroom_divisor, memory->used_bytes);
    const bool tighter = !limits.cgroup_limit_bytes || room < tightest_room ||
                         (room == tightest_room && limit < *limits.cgroup_limit_bytes);
    if (!tighter) continue;
    tightest_room = room;
    limits.cgroup_limit_bytes = limit;
    limits.cgroup_unreclaimable_bytes = memory->used_bytes;
    limits.cgroup_path = group.path;
  }
  limits.address_space_limit_bytes = address_space_limit();
  return limits;
}

DefaultBudget default_budget(const MemoryLimits& limits, std::uint64_t own_rss_bytes) noexcept {
  using Source = DefaultBudget::Source;
  DefaultBudget budget{UINT64_MAX, Source::guess};
  const auto bound = [&budget](std::uint64_t bytes, Source source) {
    if (bytes < budget.bytes) budget = {bytes, source};
  };
  if (limits.total_bytes != 0) {
    const std::uint64_t there = std::min(plus(limits.available_bytes, own_rss_bytes), limits.total_bytes);
    bound(keep_headroom(there, std::max(k_machine_headroom_bytes, limits.total_bytes / k_headroom_divisor)),
          Source::available_memory);
  }
  if (limits.cgroup_limit_bytes) {
    bound(cgroup_budget(*limits.cgroup_limit_bytes, limits.cgroup_unreclaimable_bytes, own_rss_bytes),
          Source::control_group);
  }
  if (limits.address_space_limit_bytes) {
    const std::uint64_t limit = *limits.address_space_limit_bytes;
    bound(keep_headroom(limit, limit / k_headroom_divisor), Source::resource_limit);
  }
  if (budget.source == Source::guess) budget.bytes = k_blind_budget_bytes;
  return budget;
}

ProcessMemory read_process_memory(const std::string& root) {
  const std::string status = read_text_file(root + "/proc/self/status").value_or("");
  ProcessMemory memory;
  memory.rss_bytes = find_number(status, "VmRSS:").value_or(0);
  memory.swapped_bytes = find_number(status, "VmSwap:").value_or(0);
  memory.peak_rss_bytes = std::max(find_number(status, "VmHWM:").value_or(0), memory.rss_bytes);
  return memory;
}

std::optional<std::uint64_t> read_storage_bytes() {
  const auto text = read_text_file("/proc/self/io");
  return text ? find_number(*text, "read_bytes:") : std::nullopt;
}

}  // namespace sluice::platform
