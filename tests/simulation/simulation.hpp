#pragma once

#include <cstdint>
#include <string>

#include "simulation/subjects.hpp"

namespace sluice::simulation {

/// What happened in simulations, to see that they reach what they are for.
struct Tally {
  std::uint64_t n_steps = 0, n_tokens = 0, n_cancelled = 0, n_io_errors = 0, n_sink_errors = 0;
  std::uint64_t n_misses = 0, n_ahead = 0, n_shrinks = 0, n_blocks_released = 0, n_preloaded = 0;
  std::uint64_t n_failed_reads = 0, n_opens = 0, n_failed_opens = 0;
};

/// Runs one random life of a model, decided by the seed alone: it is opened, computes, is disturbed and
/// closed, a few times. After every operation logits, counters, slots and pages must be right. Returns what
/// was not, or an empty text. With `verbose`, prints the operations.
std::string simulate(std::uint64_t seed, Subjects& subjects, Tally& tally, bool verbose = false);

}  // namespace sluice::simulation
