#include "residency/look_ahead.hpp"

#include <algorithm>

namespace sluice::residency {
namespace {

constexpr double k_average_share = 1.0 / 64;  ///< Of a new value in a moving average.
constexpr double k_first_chance = 0.75;       ///< Before anything is known of a predictor.
constexpr double k_displaced_share = 0.25;    ///< Of a read: what a unit that nobody wants costs later.

/// Mean time by which `read_ns` of reading outlasts the idle time.
double mean_excess(std::span<const double> idle_ns, double read_ns) noexcept {
  double sum = 0;
  for (const double idle : idle_ns) sum += std::max(0.0, read_ns - idle);
  return sum / static_cast<double>(idle_ns.size());
}

}  // namespace

std::size_t look_ahead_units(const LookAheadFacts& facts, std::span<const double> chances) noexcept {
  if (facts.unit_read_ns <= 0 || facts.idle_ns.empty()) return 0;
  double excess_before = 0;
  std::size_t n = 0;
  while (n < chances.size()) {
    const double excess = mean_excess(facts.idle_ns, static_cast<double>(n + 1) * facts.unit_read_ns);
    const double saved = (chances[n] - (1 - chances[n]) * k_displaced_share) * facts.unit_read_ns;
    if (saved <= excess - excess_before) break;
    excess_before = excess;
    ++n;
  }
  return n;
}

LookAheadGate::LookAheadGate() noexcept {
  chances_.fill(k_first_chance);
}

void LookAheadGate::observe_idle(std::uint64_t idle_ns, bool after_reads) noexcept {
  IdleTimes& times = idle_[after_reads ? 1 : 0];
  times.ns[times.n_seen++ % k_n_samples] = static_cast<double>(idle_ns);
}

void LookAheadGate::observe_read(std::uint64_t n_units, std::uint64_t busy_ns) noexcept {
  if (n_units == 0) return;
  const double sample = static_cast<double>(busy_ns) / static_cast<double>(n_units);
  unit_read_ns_ = unit_read_ns_ == 0 ? sample : unit_read_ns_ + (sample - unit_read_ns_) * k_average_share;
}

void LookAheadGate::observe_guess(std::size_t rank, bool wanted) noexcept {
  double& chance = chances_[std::min(rank, k_n_ranks - 1)];
  chance += ((wanted ? 1.0 : 0.0) - chance) * k_average_share;
}

std::size_t LookAheadGate::allowance(std::span<const std::uint8_t> ranks, bool after_reads) const noexcept {
  if (ranks.empty() || unit_read_ns_ <= 0) return 0;
  std::array<double, k_max_units> chances;
  const std::size_t n_ranks = std::min(ranks.size(), k_max_units);
  for (std::size_t i = 0; i < n_ranks; ++i)
    chances[i] = chances_[std::min<std::size_t>(ranks[i], k_n_ranks - 1)];
  const IdleTimes& times = idle_[after_reads ? 1 : 0];
  const std::span<const double> idle(times.ns.data(), std::min(times.n_seen, k_n_samples));
  return look_ahead_units({idle, unit_read_ns_}, std::span(chances).first(n_ranks));
}

void Guesses::set(std::uint32_t layer, std::span<const std::uint16_t> experts,
                  std::optional<std::size_t> max_units) {
  layer_ = layer;
  max_units_ = max_units;
  experts_.assign(experts.begin(), experts.end());
}

std::span<const MissingGuess> Guesses::choose(base::FunctionRef<bool(std::uint32_t expert)> is_cached,
                                              bool after_reads) noexcept {
  std::array<std::uint8_t, LookAheadGate::k_max_units> ranks;
  std::size_t n = 0;
  for (std::size_t rank = 0; rank < experts_.size() && n < ranks.size(); ++rank) {
    if (is_cached(experts_[rank])) continue;
    ranks[n] = static_cast<std::uint8_t>(std::min<std::size_t>(rank, UINT8_MAX));
    missing_[n] = {experts_[rank], ranks[n]};
    ++n;
  }
  n_missing_ = n;
  const std::size_t allowed =
      max_units_ ? *max_units_ : gate_.allowance(std::span(ranks).first(n), after_reads);
  return std::span(missing_).first(std::min(n, allowed));
}

void Guesses::judge(std::uint32_t layer, base::FunctionRef<bool(std::uint32_t expert)> is_wanted) noexcept {
  for (std::size_t i = 0; i < n_missing_ && layer_ == layer; ++i)
    gate_.observe_guess(missing_[i].rank, is_wanted(missing_[i].expert));
  n_missing_ = 0;
  forget();
}

}  // namespace sluice::residency
