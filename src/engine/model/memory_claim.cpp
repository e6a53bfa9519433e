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
    const std::uint64_t room = limit - std::min(limit, limits.cgroup_unreclaimable_bytes);
    if (facts.limit_bytes == 0 || room < facts.free_bytes) {
      facts.limit_bytes = limit;
      facts.free_bytes = room;
    }
  }
  if (facts.limit_bytes == 0) return std::nullopt;
  return facts;
}

std::optional<residency::PressureFacts> MemoryClaim::look() {
  auto facts = memory_facts(read_limits_());
  if (!facts) return std::nullopt;
  // What is no longer free, and was not given to this model.
  const std::uint64_t left = seen_free_bytes_ - std::min(seen_free_bytes_, granted_bytes_);
  facts->taken_bytes = left - std::min(left, facts->free_bytes);
  seen_free_bytes_ = facts->free_bytes;
  granted_bytes_ = 0;
  looked_ns_ = base::now_ns();
  return facts;
}

bool MemoryClaim::may_take(std::uint64_t bytes) {
  allowed_bytes_ = 0;
  const auto facts = look();
  if (!facts) return true;
  const std::uint64_t wanted = bytes + later_bytes_ + residency::mark_while_others_grow(*facts);
  if (facts->free_bytes < wanted) return false;
  granted_bytes_ = bytes;
  return true;
}

bool MemoryClaim::must_take(std::uint64_t bytes) {
  // Several may look at the same moment, so a look allows only part of what it sees, and that not for long:
  // where pages come slowly, as in a virtual machine that has not touched them before, others take much
  // meanwhile.
  constexpr std::uint64_t k_share = 8, k_most_bytes = 128 * base::k_mib, k_fresh_ns = 5'000'000;
  constexpr auto k_pause = std::chrono::milliseconds(5);
  if (base::now_ns() - looked_ns_ > k_fresh_ns) allowed_bytes_ = 0;
  std::uint64_t since_ns = base::now_ns(), most_free = 0;
  while (allowed_bytes_ < bytes) {
    const auto facts = look();
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
  granted_bytes_ += bytes;
  return true;
}

}  // namespace sluice::engine
