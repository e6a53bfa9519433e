#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sluice/plan.hpp"

namespace sluice::residency {

/// Matrices that every pass uses one after the other and that are kept or streamed together: the attention,
/// the feed-forward part or the shared expert of one layer.
struct DenseBlockFacts {
  Role role = Role::dense_ffn;  ///< dense_ffn, shared_expert or attention.
  std::uint64_t bytes = 0;      ///< Of its matrices.
};

/// Which of the blocks stay in memory when they may take `bytes`; the others are read anew in every pass.
/// Feed-forward blocks are streamed before shared experts and those before attention blocks, because they are
/// larger: fewer, longer reads.
/// What stays is spread evenly among what does not, so that the drive works on the next streamed block while
/// a resident one is computed. A pass is a cyclic scan, so which of the blocks stay matters no further.
/// Returns one flag per block. Pure.
std::vector<bool> choose_pinned_blocks(std::span<const DenseBlockFacts> blocks, std::uint64_t bytes);

/// In which order pinned blocks give way when memory gets short after the plan was made: feed-forward blocks,
/// then shared experts, then attention blocks; of each kind every other, then every other of those between,
/// and so on, so that what stays is spread evenly whenever it ends. Each index once. Pure.
std::vector<std::uint32_t> release_order(std::span<const DenseBlockFacts> blocks);

/// How many blocks from the front of `order` must be given up so that the others take at most `bytes`. Pure.
std::size_t count_released(std::span<const DenseBlockFacts> blocks, std::span<const std::uint32_t> order,
                           std::uint64_t bytes);

}  // namespace sluice::residency
