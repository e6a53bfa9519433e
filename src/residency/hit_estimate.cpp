#include "residency/hit_estimate.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/check.hpp"

namespace sluice::residency {

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
    const auto hot = uses.begin() + n_hot;
    std::nth_element(uses.begin(), hot, uses.end(), std::greater<>());
    const double counted = total > 0 ? std::accumulate(uses.begin(), hot, 0.0) / total : even;
    // Every token uses as many experts in one layer as in another.
    sum += (1 - prior) * counted + prior * even;
  }
  return std::clamp(sum / static_cast<double>(n_slots.size()), 0.0, 1.0);
}

}  // namespace sluice::residency
