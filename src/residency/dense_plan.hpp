#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/plan.hpp"

namespace sluice::residency {

/// Matrices that every pass uses one after the other and that are kept or streamed together: the attention
/// or the feed-forward part of one layer.
struct DenseBlockFacts {
  Role role = Role::dense_ffn;  ///< dense_ffn or attention.
  std::uint64_t bytes = 0;      ///< Of its matrices.
};

/// Which of the blocks stay in memory when they may take `bytes`; the others are read anew in every pass.
/// Feed-forward blocks are streamed before attention blocks, because they are larger: fewer, longer reads.
/// What stays is spread evenly among what does not, so that the drive works on the next streamed block while
/// a resident one is computed. A pass is a cyclic scan, so which of the blocks stay matters no further.
/// Returns one flag per block. Pure.
std::vector<bool> choose_pinned_blocks(std::span<const DenseBlockFacts> blocks, std::uint64_t bytes);

}  // namespace sluice::residency
