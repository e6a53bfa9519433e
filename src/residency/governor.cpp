#include "residency/governor.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace sluice::residency {
namespace {

constexpr std::uint64_t k_mark_divisor = 64;
constexpr std::uint64_t k_max_mark_bytes = 256 * base::k_mib;

}  // namespace

std::uint64_t low_water_mark(const PressureFacts& facts) noexcept {
  return std::min(facts.limit_bytes / k_mark_divisor, k_max_mark_bytes);
}

std::uint64_t mark_while_others_grow(const PressureFacts& facts) noexcept {
  return std::max(low_water_mark(facts), std::min(2 * facts.taken_bytes, facts.limit_bytes / 8));
}

GovernedBytes governed_bytes(const PressureFacts& facts) noexcept {
  const std::uint64_t mark = low_water_mark(facts);
  const std::uint64_t low = mark_while_others_grow(facts);
  if (facts.free_bytes < low) {
    const std::uint64_t wanted = 2 * low - facts.free_bytes;
    const std::uint64_t of_slots = std::min(facts.slot_bytes, wanted);
    return {facts.slot_bytes - of_slots, facts.block_bytes - std::min(facts.block_bytes, wanted - of_slots)};
  }
  GovernedBytes governed{facts.slot_bytes, facts.block_bytes};
  if (facts.free_bytes > 4 * mark) {
    std::uint64_t room = facts.free_bytes - 3 * mark;
    if (facts.max_growth_bytes != UINT64_MAX) {
      const std::uint64_t share = std::min(room / 2, facts.max_growth_bytes);
      room = std::min(room, std::max(share, facts.next_block_bytes));
    }
    const auto take_back = [&room](std::uint64_t& bytes, std::uint64_t planned) {
      const std::uint64_t taken = std::min(room, planned - std::min(planned, bytes));
      bytes += taken;
      room -= taken;
    };
    take_back(governed.block_bytes, facts.planned_block_bytes);
    take_back(governed.slot_bytes, facts.planned_slot_bytes);
  }
  return governed;
}

}  // namespace sluice::residency
