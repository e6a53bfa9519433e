#include "engine/model/model_impl.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "residency/governor.hpp"

namespace sluice {

std::optional<residency::PressureFacts> Model::Impl::pressure() const {
  const platform::MemoryLimits limits = memory_limits();
  residency::PressureFacts facts;
  if (cache != nullptr && cache->is_streaming()) {
    facts.slot_bytes = cache->own_slot_bytes();
    facts.planned_slot_bytes = cache->planned_own_slot_bytes();
  }
  if (tiers != nullptr) {
    facts.block_bytes = tiers->bytes();
    facts.planned_block_bytes = tiers->planned_bytes();
  }
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
  if (facts.limit_bytes == 0) return std::nullopt;  // Nothing is known.
  return facts;
}

void Model::Impl::govern(std::uint32_t next_tensor) {
  if (tiers != nullptr) tiers->settle(next_tensor);
  const std::uint64_t now = base::now_ns();
  if (now - governed_ns < govern_interval_ns) return;
  governed_ns = now;
  const auto facts = pressure();
  if (!facts) return;
  const residency::GovernedBytes wanted = residency::governed_bytes(*facts);
  // Giving way cannot wait, coming back can: each change of size waits for the reads under way.
  constexpr std::uint64_t k_patience = 8;
  if ((wanted.slot_bytes > facts->slot_bytes || wanted.block_bytes > facts->block_bytes) &&
      now - resized_ns < k_patience * govern_interval_ns)
    return;
  if (wanted.slot_bytes != facts->slot_bytes) {
    resized_ns = now;
    cache->resize(wanted.slot_bytes);
  }
  if (wanted.block_bytes != facts->block_bytes && tiers->resize(wanted.block_bytes, next_tensor))
    resized_ns = now;
}

}  // namespace sluice
