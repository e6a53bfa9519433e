#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sluice/options.hpp"

namespace sluice::residency {

/// How misses may displace what is cached: decode always admits the newest, prefill only what scores higher,
/// so that a long prompt does not sweep the cache.
enum class Admission : std::uint8_t { always, if_better };

/// The admission of a pass that wants `n_wanted` experts of a layer with `n_slots` slots. When they fill all
/// slots, always admitting the newest would throw out everything older at every token; letting a miss
/// displace only what scores lower, the best first, then keeps 1 to 6 points more hits (docs/performance.md).
/// LRU is not changed by it: its newest always scores highest.
inline Admission pass_admission(Admission asked, std::size_t n_wanted, std::size_t n_slots) noexcept {
  return n_wanted >= n_slots ? Admission::if_better : asked;
}

/// Whether a miss may take the slot of the lowest-scoring unit of its layer.
inline bool may_displace(Admission admission, double victim_score, double newcomer_score) noexcept {
  return admission == Admission::always || victim_score < newcomer_score;
}

/// Use statistics of one layer's experts and the order in which they should leave the cache. Pure bookkeeping
/// over ids and a token clock: no slots, no I/O, so that the same code decides in the engine and in a replay.
///
/// LFRU: score = f / (1 + age), f an exponential moving count of uses with a half-life of 32 tokens, age in
/// tokens since the last use. Measured on public routing traces it keeps 2 to 5 points more hits than LRU at
/// caches of 6 to 12 % of the experts and is never worse by more than 0.2.
class LayerPolicy {
 public:
  LayerPolicy(CachePolicy kind, std::uint32_t n_experts);

  static constexpr double k_half_life_tokens = 32.0;

  /// Counts `n_uses` of an expert at time `now` (tokens processed so far; never goes back).
  void touch(std::uint32_t expert, std::uint64_t now, std::uint32_t n_uses = 1) noexcept;

  /// What an earlier run knows: the expert was used in this share of its tokens. It scores as if it had been
  /// used at that rate until time 0, until this run's own uses outweigh that. Only before its first touch.
  void seed(std::uint32_t expert, double share_of_tokens) noexcept;

  /// Uses that were counted, without seeds.
  std::uint32_t n_uses(std::uint32_t expert) const noexcept { return uses_[expert].n_uses; }

  /// Sorts the misses of a pass so that the highest scores find a slot first; equal ones keep their order.
  /// For few ids, as one token has.
  void order_by_score(std::span<std::uint32_t> experts, std::uint64_t now) const noexcept;

  /// Higher stays longer. An expert that was never used has the lowest score.
  double score(std::uint32_t expert, std::uint64_t now) const noexcept;

 private:
  struct Use {
    float frequency = 0;  ///< Decayed to `last_use`.
    std::uint32_t n_uses = 0;
    std::uint64_t last_use = 0;
    bool used = false;
  };
  CachePolicy kind_;
  std::vector<Use> uses_;
};

}  // namespace sluice::residency
