#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/replay.hpp"

namespace sluice::cli {

/// Hit rates of a trace: a row per policy, a column per size of the cache.
struct ReplayReport {
  struct Size {
    std::string label;          ///< "6.25 %" or "8 slots".
    std::uint64_t n_slots = 0;  ///< Of all layers.
  };
  struct Row {
    ReplayPolicy policy = ReplayPolicy::lfru;
    std::vector<ReplayCell> cells;
  };
  RoutingTrace trace;
  std::uint32_t n_warm_up = 0;
  std::vector<Size> sizes;
  std::vector<Row> rows;

  double share(std::size_t size) const;  ///< Slots over all experts, at most 1.
  std::uint32_t n_prompt_tokens() const;
  std::uint32_t n_counted() const;  ///< Decoded tokens after the warm-up.
};

}  // namespace sluice::cli
