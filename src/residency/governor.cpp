#include "residency/governor.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace sluice::residency {
namespace {

constexpr std::uint64_t k_mark_divisor = 64;
constexpr std::uint64_t k_max_mark_bytes = 256 * base::k_mib;

std::uint64_t mark_of(const PressureFacts& facts) noexcept {
  return std::min(facts.limit_bytes / k_mark_divisor, k_max_mark_bytes);
}

}  // namespace

bool leaves_mark_free(const PressureFacts& facts, std::uint64_t bytes) noexcept {
  return facts.free_bytes >= bytes && facts.free_bytes - bytes >= mark_of(facts);
}

std::uint64_t governed_slot_bytes(const PressureFacts& facts) noexcept {
  const std::uint64_t mark = mark_of(facts);
  if (facts.free_bytes < mark) {
    const std::uint64_t wanted = 2 * mark - facts.free_bytes;
    return facts.slot_bytes - std::min(facts.slot_bytes, wanted);
  }
  if (facts.free_bytes > 4 * mark && facts.slot_bytes < facts.planned_bytes) {
    return std::min(facts.planned_bytes, facts.slot_bytes + (facts.free_bytes - 3 * mark));
  }
  return facts.slot_bytes;
}

}  // namespace sluice::residency
