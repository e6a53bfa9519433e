#pragma once

#include <string>

#include "sluice/stats.hpp"

namespace sluice::cli {

/// Says that a run was swapped out, and the cure; empty when it was not, or so little that nobody feels it.
std::string swap_warning(const Stats& stats);

}  // namespace sluice::cli
