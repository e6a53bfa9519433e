#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::residency {

/// What is known when units of the next layer might be read before its router speaks.
struct LookAheadFacts {
  /// Time the drive has nothing to do between the last demanded unit of one layer and the next layer's
  /// demand.
  double idle_ns = 0;
  double unit_read_ns = 0;  ///< Of one unit, while the queue is full.
  std::uint64_t n_read = 0;
  std::uint64_t n_used = 0;  ///< Of those read; both of the recent past.
};

/// How many predicted units to read ahead: what fits the idle time of the drive, since more would hold up the
/// next layer's demand, and nothing when less than half of what was read was used. Pure.
std::size_t look_ahead_units(const LookAheadFacts& facts) noexcept;

/// Keeps the facts as moving averages and decides. A predictor that fails is tried again now and then: what
/// a text is about changes.
class LookAheadGate {
 public:
  void observe_idle(std::uint64_t idle_ns) noexcept;
  void observe_read(std::uint64_t n_units, std::uint64_t busy_ns) noexcept;
  void observe_end(bool used) noexcept;  ///< Of one unit read ahead: it was used, or left its slot unused.
  std::size_t allowance() noexcept;      ///< Units to read ahead now.

 private:
  LookAheadFacts facts_;
  std::uint32_t n_skipped_ = 0;
};

}  // namespace sluice::residency
