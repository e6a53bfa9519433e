#include "engine/model/memory_claim.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "base/units.hpp"

namespace sluice::engine {

std::optional<residency::PressureFacts> memory_facts(const platform::MemoryLimits& limits) {
  residency::PressureFacts facts;
  facts.limit_bytes = limits.total_bytes;
  facts.free_bytes = limits.available_bytes;
  if (limits.cgroup_limit_bytes) {
    const std::uint64_t limit = *limits.cgroup_limit_bytes;
    const std::uint64_t room = limit - std::min(limit, limits.cgroup_used_bytes);
    if (facts.limit_bytes == 0 || room < facts.free_bytes) {
      facts.limit_bytes = limit;
      facts.free_bytes = room;
    }
  }
  if (facts.limit_bytes == 0) return std::nullopt;
  return facts;
}

bool MemoryClaim::may_take(std::uint64_t bytes) {
  const auto facts = memory_facts(read_limits_());
  return !facts || residency::leaves_mark_free(*facts, bytes + later_bytes_);
}

bool MemoryClaim::must_take(std::uint64_t bytes) {
  // Several may look at the same moment, so a look allows only part of what it sees.
  constexpr std::uint64_t k_share = 8, k_most_bytes = 128 * base::k_mib;
  constexpr auto k_pause = std::chrono::milliseconds(5);
  std::uint64_t since_ns = base::now_ns(), most_free = 0;
  while (allowed_bytes_ < bytes) {
    const auto facts = memory_facts(read_limits_());
    if (!facts) return true;
    const std::uint64_t kept = residency::low_water_mark(*facts) / 2;
    const std::uint64_t room = facts->free_bytes - std::min(facts->free_bytes, kept);
    if (room >= bytes) {
      allowed_bytes_ = std::clamp(room / k_share, bytes, std::max(bytes, k_most_bytes));
      break;
    }
    if (wait_ns_ == 0) return false;
    const std::uint64_t now = base::now_ns();
    if (facts->free_bytes > most_free) {
      most_free = facts->free_bytes;
      since_ns = now;
    } else if (now - since_ns >= wait_ns_) {
      return false;
    }
    std::this_thread::sleep_for(k_pause);
  }
  allowed_bytes_ -= bytes;
  return true;
}

}  // namespace sluice::engine
