#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "residency/cache_policy.hpp"
#include "sluice/replay.hpp"

namespace sluice::replay {

/// What one layer wants in one pass.
struct Fetch {
  struct Want {
    std::uint32_t expert = 0;
    std::uint32_t n_rows = 1;
    std::uint64_t next_use = 0;  ///< Position of the fetch that wants it next, k_never if none.
  };
  static constexpr std::uint64_t k_never = ~std::uint64_t{0};

  std::uint32_t layer = 0;
  std::span<const Want> wants;  ///< Each expert once.
  residency::Admission admission = residency::Admission::always;
  std::uint64_t now = 0;  ///< Tokens computed, this pass's included: the policies' clock.
};

/// A cache of ids: bookkeeping of what a real one would hold.
class Cache {
 public:
  virtual ~Cache() = default;
  /// Serves a fetch; sets hit[i] to whether wants[i] was there.
  virtual void run(const Fetch& fetch, std::span<bool> hit) = 0;
};

/// Throws nothing but bad_alloc. `n_slots` of all layers together.
std::unique_ptr<Cache> make_cache(ReplayPolicy policy, std::uint32_t n_layers, std::uint32_t n_experts,
                                  std::uint64_t n_slots);

}  // namespace sluice::replay
