#include "cli/swap_warning.hpp"

#include <fmt/core.h>

#include "base/units.hpp"

namespace sluice::cli {

// A new process has nothing on the swap drive, so what is there at the end came during the run.
std::string swap_warning(const Stats& stats) {
  // Memory of a program that nothing uses any more goes first, and is not missed.
  constexpr std::uint64_t k_unfelt_bytes = std::uint64_t{16} << 20;
  if (stats.swapped_bytes < k_unfelt_bytes) return {};
  return fmt::format(
      "{} of this process were swapped out during the run, {} are in memory: the system had too little for "
      "all programs, and weights on the swap drive come back slowly. Give a smaller --memory, or end other "
      "programs",
      base::format_bytes(stats.swapped_bytes), base::format_bytes(stats.rss_bytes));
}

}  // namespace sluice::cli
