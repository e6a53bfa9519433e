#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.hpp"

namespace sluice::residency {

/// What is known when units of the next layer might be read before its router speaks.
struct LookAheadFacts {
  /// How long the drive had nothing else to do in recent layers like this one, from the last demanded unit of
  /// a layer to the next layer's demand.
  std::span<const double> idle_ns;
  double unit_read_ns = 0;  ///< Of one unit, while the queue is full.
};

/// How many of the predicted units to read ahead. `chances` says of each, best guess first, how probable it
/// is that the next layer wants it. Pure.
///
/// A unit that is wanted saves its read. What is still being read when the router speaks is joined when it is
/// wanted; but it goes before what else the layer demands, so the time by which the reads outlast the idle
/// time is lost. A unit that is not wanted has displaced another one, which may be missed later. So unit n of
/// r nanoseconds is worth
///   chance * r - (1 - chance) * r / 4 - (mean over idle of (n r - idle)+ - ((n - 1) r - idle)+),
/// and units are read for as long as this is above 0.
std::size_t look_ahead_units(const LookAheadFacts& facts, std::span<const double> chances) noexcept;

/// Keeps the facts and decides. Idle times are kept apart for layers that read something and layers that
/// found all in memory, whose whole computing is idle time. Chances are learnt from all guesses of what is
/// not cached, read or not, so a predictor that failed is trusted again as soon as it is right.
class LookAheadGate {
 public:
  static constexpr std::size_t k_max_units = 8;  ///< Read ahead for one layer.
  static constexpr std::size_t k_n_ranks = 16;   ///< Guesses from this rank on share one chance.

  LookAheadGate() noexcept;
  void observe_idle(std::uint64_t idle_ns, bool after_reads) noexcept;
  void observe_read(std::uint64_t n_units, std::uint64_t busy_ns) noexcept;
  /// Of the predictor's guess number `rank`, which was not cached: whether the next layer wanted it.
  void observe_guess(std::size_t rank, bool wanted) noexcept;
  /// Units to read ahead now, of guesses with these ranks, which are not cached, after a layer that read
  /// something or nothing.
  std::size_t allowance(std::span<const std::uint8_t> ranks, bool after_reads) const noexcept;

 private:
  static constexpr std::size_t k_n_samples = 32;
  struct IdleTimes {
    std::array<double, k_n_samples> ns{};
    std::size_t n_seen = 0;
  };
  std::array<IdleTimes, 2> idle_;  ///< After a layer that read nothing, and that read something.
  std::array<double, k_n_ranks> chances_{};
  double unit_read_ns_ = 0;
};

/// A guess that is in no slot, and its rank among the guesses.
struct MissingGuess {
  std::uint16_t expert = 0;
  std::uint8_t rank = 0;
};

/// What a layer's router will probably want, and which of it to read ahead. Layers are indexes in the unit
/// map's layers.
class Guesses {
 public:
  void reserve(std::size_t n_experts) { experts_.reserve(n_experts); }
  /// Best guess first. `max_units` stands in for what the gate allows.
  void set(std::uint32_t layer, std::span<const std::uint16_t> experts, std::optional<std::size_t> max_units);
  void forget() noexcept { experts_.clear(); }
  std::uint32_t layer() const noexcept { return layer_; }
  std::span<const std::uint16_t> experts() const noexcept { return experts_; }  ///< Empty once forgotten.
  /// The guesses to read now, best first, after a layer that read something or nothing. Remembers all that
  /// are not cached, up to what may be read at all. Valid until the next call.
  std::span<const MissingGuess> choose(base::FunctionRef<bool(std::uint32_t expert)> is_cached,
                                       bool after_reads) noexcept;
  /// The router of a layer has spoken: teaches the gate, and forgets the guesses.
  void judge(std::uint32_t layer, base::FunctionRef<bool(std::uint32_t expert)> is_wanted) noexcept;
  LookAheadGate& gate() noexcept { return gate_; }

 private:
  LookAheadGate gate_;
  std::uint32_t layer_ = 0;
  std::vector<std::uint16_t> experts_;
  std::optional<std::size_t> max_units_;
  std::array<MissingGuess, LookAheadGate::k_max_units> missing_;  ///< For layer_.
  std::size_t n_missing_ = 0;
};

}  // namespace sluice::residency
