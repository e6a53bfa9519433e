#pragma once

#include <cstdint>

namespace sluice::residency {

/// The memory that expert slots and pinned blocks share with everything else on the machine. Bytes.
struct PressureFacts {
  std::uint64_t slot_bytes = 0;           ///< In slots now.
  std::uint64_t planned_slot_bytes = 0;   ///< In slots when nothing presses.
  std::uint64_t limit_bytes = 0;          ///< Of the group or the machine that leaves least.
  std::uint64_t free_bytes = 0;           ///< What nobody uses of it.
  std::uint64_t block_bytes = 0;          ///< In blocks that can be streamed instead, now.
  std::uint64_t planned_block_bytes = 0;  ///< The same when nothing presses.
  std::uint64_t taken_bytes = 0;          ///< By others since the look before.
  /// Most to take back at once. When it is limited, half of the room at most is taken, so that neighbours
  /// who see the same room at the same moment do not fill it twice.
  std::uint64_t max_growth_bytes = UINT64_MAX;
  std::uint64_t next_block_bytes = 0;  ///< Of the block that comes back next, which can only come whole.
};

struct GovernedBytes {
  std::uint64_t slot_bytes = 0, block_bytes = 0;
};

/// How many bytes of slots and of blocks to hold at most from now on. When less than a low-water mark is free
/// (1/64 of the limit, at most 256 MiB) they give way until twice the mark is; when more than four times the
/// mark is, they take back what exceeds three, never more than planned. Between the marks nothing changes, so
/// that a neighbour who breathes does not make the cache flap. While others take memory so fast that it would
/// be gone after two more looks, the mark is what they would take, up to an eighth of the limit. Slots give
/// way first and come back last: a slot less costs some misses, a block less is read in every pass. Pure.
GovernedBytes governed_bytes(const PressureFacts& facts) noexcept;

/// What should stay free. Pure.
std::uint64_t low_water_mark(const PressureFacts& facts) noexcept;

/// The same while others take memory: what they would take until the look after the next, up to an eighth of
/// the limit, where that is more. Pure.
std::uint64_t mark_while_others_grow(const PressureFacts& facts) noexcept;

}  // namespace sluice::residency
