#include "residency/hit_estimate.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/check.hpp"

namespace sluice::residency {

namespace {

/// The part of the variance of a layer's counts that is more than chance: an expert that is used in a share p
/// of n tokens, independently, has a count of variance n p (1 - p).
double part_beyond_chance(std::span<const double> uses, double mean, double n_tokens) {
  double sum = 0;
  for (const double n : uses) sum += (n - mean) * (n - mean);
  if (!(sum > 0)) return 0;
  const double variance = sum / static_cast<double>(uses.size() - 1);
  return std::clamp(1 - mean * (1 - mean / n_tokens) / variance, 0.0, 1.0);
}

}  // namespace

std::optional<double> hit_rate_from_heat(const HeatCounts& counts, std::uint32_t n_experts,
                                         std::span<const std::uint32_t> n_slots) {
  SLUICE_CHECK(counts.uses.size() == n_slots.size() * n_experts);
  if (counts.n_tokens < k_min_heat_tokens || counts.uses.empty()) return std::nullopt;
  const double prior = k_heat_prior_tokens / (counts.n_tokens + k_heat_prior_tokens);
  double sum = 0;
  std::vector<double> uses(n_experts);
  for (std::size_t layer = 0; layer < n_slots.size(); ++layer) {
    const auto from = counts.uses.begin() + static_cast<std::ptrdiff_t>(layer * n_experts);
    std::copy_n(from, n_experts, uses.begin());
    const std::uint32_t n_hot = std::min(n_slots[layer], n_experts);
    const double even = static_cast<double>(n_hot) / n_experts;
    const double total = std::accumulate(uses.begin(), uses.end(), 0.0);
    const double believed = (1 - prior) * part_beyond_chance(uses, total / n_experts, counts.n_tokens);
    const auto hot = uses.begin() + n_hot;
    std::nth_element(uses.begin(), hot, uses.end(), std::greater<>());
    const double counted = total > 0 ? std::accumulate(uses.begin(), hot, 0.0) / total : even;
    // Every token uses as many experts in one layer as in another.
    sum += believed * counted + (1 - believed) * even;
  }
  return std::clamp(sum / static_cast<double>(n_slots.size()), 0.0, 1.0);
}

}  // namespace sluice::residency
