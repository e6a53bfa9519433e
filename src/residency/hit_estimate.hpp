#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice::residency {

/// How often each expert was used. Older tokens weigh less.
struct HeatCounts {
  double n_tokens = 0;
  std::vector<double> uses;  ///< [n_layers, n_experts], each at most about n_tokens.
};

/// Counts of fewer tokens say nothing: a prompt of ten tokens uses a few experts, and these look hot.
constexpr double k_min_heat_tokens = 64;
/// So many tokens that use all experts alike are counted in addition, because the first tokens of a text are
/// more like one another than like what follows.
constexpr double k_heat_prior_tokens = 8;

/// The share of decoding's uses of experts that an `lfru` cache with `n_slots` [n_layers] slots is expected
/// to find, 0 to 1, from the use counts of earlier tokens: in each layer what the experts used most, as many
/// as it has slots, were used of all. Of how far counts are from even, the part that chance alone would have
/// made is taken back first: the most used of experts that are all alike will not be used as much again.
/// Nothing when the counts are of too few tokens or there is no layer.
/// Requires uses [n_layers, n_experts]. Pure.
///
/// That is the best a cache can do that never changes, and so too much by up to 7 points where tokens are
/// independent of one another. The uses of neighbouring tokens in a text resemble each other, which `lfru`
/// makes as much of: docs/performance.md ("Prediction") has how far it is off.
std::optional<double> hit_rate_from_heat(const HeatCounts& counts, std::uint32_t n_experts,
                                         std::span<const std::uint32_t> n_slots);

}  // namespace sluice::residency
