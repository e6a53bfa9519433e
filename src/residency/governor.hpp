#pragma once

#include <cstdint>

namespace sluice::residency {

/// The memory that expert slots share with everything else on the machine. Bytes.
struct PressureFacts {
  std::uint64_t slot_bytes = 0;     ///< In slots now.
  std::uint64_t planned_bytes = 0;  ///< In slots when nothing presses.
  std::uint64_t limit_bytes = 0;    ///< Of the group or the machine that leaves least.
  std::uint64_t free_bytes = 0;     ///< What nobody uses of it.
};

/// How many bytes of slots to hold from now on. When less than a low-water mark is free (1/64 of the limit,
/// at most 256 MiB) slots give way until twice the mark is; when more than four times the mark is, they take
/// back what exceeds three, never more than planned. Between the marks nothing changes, so that a neighbour
/// who breathes does not make the cache flap. Pure.
std::uint64_t governed_slot_bytes(const PressureFacts& facts) noexcept;

/// Whether `bytes` more in slots leave the low-water mark free. Pure.
bool leaves_mark_free(const PressureFacts& facts, std::uint64_t bytes) noexcept;

}  // namespace sluice::residency
