#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/random.hpp"
#include "engine/model/memory_claim.hpp"
#include "residency/dense_tiers.hpp"
#include "residency/governor.hpp"
#include "residency/unit_cache.hpp"

namespace sluice::engine {

/// Lets slots and pinned blocks of one model give way while memory is short, and come back. Used by one
/// thread, that of the cache and the tiers.
class Pressure {
 public:
  /// A neighbour that takes 300 MB/s takes 8 MB between two looks, and a look costs a tenth of a millisecond.
  static constexpr std::uint64_t k_interval_ns = 25'000'000;

  /// `read_limits` tells what the system says of memory; looks are `interval_ns` apart at least.
  explicit Pressure(ReadLimits read_limits, std::uint64_t interval_ns = k_interval_ns);

  /// What gives way: both borrowed, either may be null.
  void watch(residency::UnitCache* cache, residency::DenseTiers* tiers) noexcept {
    cache_ = cache;
    tiers_ = tiers;
  }

  /// Memory as it is now; nothing when the system tells nothing.
  std::optional<residency::PressureFacts> facts() const;
  /// Looks, when it is time, and gives slots and blocks back or takes them again. For a model that streams
  /// dense weights: between two products, of which the next uses tensor `next_tensor` of the stream; else
  /// between two layers.
  void govern(std::uint32_t next_tensor);
  /// The same between two steps, but takes nothing back: nobody needs it now.
  void relieve();
  /// Within a layer that takes long, as those of a prompt do, or while experts are loaded: gives back slots
  /// that nothing uses at the moment. Costs a look at the clock while others look often enough.
  void give_way();

 private:
  /// What should change, when it is time to look and something should.
  struct Change {
    residency::PressureFacts facts;
    residency::GovernedBytes wanted;
  };
  std::optional<Change> look();
  /// How far looks are apart now.
  std::uint64_t pause_ns() const noexcept;

  ReadLimits read_limits_;
  std::uint64_t interval_ns_;
  base::SplitMix64 random_;
  std::uint64_t looked_ns_ = 0;
  std::uint64_t seen_free_bytes_ = 0, seen_held_bytes_ = 0;  ///< At that look: free, and of this process.
  bool is_alarmed_ = false;                                  ///< Looks come closer together.
  std::uint64_t grows_from_ns_ = 0;                          ///< When it may take back again.
  residency::UnitCache* cache_ = nullptr;
  residency::DenseTiers* tiers_ = nullptr;
};

}  // namespace sluice::engine
