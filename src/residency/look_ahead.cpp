#include "residency/look_ahead.hpp"

#include <algorithm>

namespace sluice::residency {
namespace {

constexpr double k_average_share = 1.0 / 64;  ///< Of a new value in a moving average.
constexpr std::size_t k_max_units = 8;
constexpr std::uint64_t k_enough = 32;        ///< Ends before the share of used ones means something.
constexpr std::uint64_t k_recent = 256;       ///< Counts are halved at this many.
constexpr std::uint32_t k_retry_after = 512;  ///< Refused layers after which one attempt is made.

void average(double& value, double sample) noexcept {
  value = value == 0 ? sample : value + (sample - value) * k_average_share;
}

}  // namespace

std::size_t look_ahead_units(const LookAheadFacts& facts) noexcept {
  if (facts.unit_read_ns <= 0 || facts.idle_ns <= 0) return 0;
  if (facts.n_read >= k_enough && 2 * facts.n_used < facts.n_read) return 0;
  return static_cast<std::size_t>(std::min(facts.idle_ns / facts.unit_read_ns, double{k_max_units}));
}

void LookAheadGate::observe_idle(std::uint64_t idle_ns) noexcept {
  average(facts_.idle_ns, static_cast<double>(idle_ns));
}

void LookAheadGate::observe_read(std::uint64_t n_units, std::uint64_t busy_ns) noexcept {
  if (n_units != 0) average(facts_.unit_read_ns, static_cast<double>(busy_ns) / static_cast<double>(n_units));
}

void LookAheadGate::observe_end(bool used) noexcept {
  if (facts_.n_read == k_recent) {
    facts_.n_read /= 2;
    facts_.n_used /= 2;
  }
  ++facts_.n_read;
  if (used) ++facts_.n_used;
}

std::size_t LookAheadGate::allowance() noexcept {
  const std::size_t n = look_ahead_units(facts_);
  if (n != 0) {
    n_skipped_ = 0;
    return n;
  }
  if (facts_.unit_read_ns <= 0 || ++n_skipped_ < k_retry_after) return 0;
  n_skipped_ = 0;
  return 1;
}

}  // namespace sluice::residency
