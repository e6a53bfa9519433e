#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "residency/dense_plan.hpp"
#include "residency/dense_stream.hpp"
#include "residency/weight_store.hpp"

namespace sluice::residency {

/// A block of dense weights and where the plan put it.
struct PlacedBlock {
  Role role = Role::dense_ffn;  ///< dense_ffn or attention.
  TensorBlock tensors;          ///< In the order of their use.
  bool is_pinned = false;
};

/// Moves blocks between memory and the ring while a model runs. A pinned block that gives way has its pages
/// taken and is streamed from then on. One that comes back gets pages again and is streamed once more: its
/// rows are copied as they pass through the ring, so that coming back costs no read of its own, and a read
/// that fails is that of a streamed weight, which ends one pass and leaves the block where it was. Used by
/// one thread, that of the stream.
class DenseTiers {
 public:
  struct Statistics {
    std::uint64_t n_released = 0, n_returned = 0;  ///< Blocks that gave memory back, and that took it again.
  };
  /// Borrows both. `store` has loaded the pinned ones of `blocks`, in this order, as its blocks; the tensors
  /// of `stream` are those of all blocks.
  DenseTiers(std::span<const PlacedBlock> blocks, WeightStore& store, DenseStream& stream);

  /// Memory of blocks, without that of the ring: now, and as planned.
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t planned_bytes() const noexcept { return planned_bytes_; }
  /// Of the block that comes back next; 0 when all are here.
  std::uint64_t next_bytes() const noexcept { return n_away_ == 0 ? 0 : facts_[order_[n_away_ - 1]].bytes; }
  /// Holds as many blocks as fit `bytes` from now on. `next_tensor` as for DenseStream::set_streamed(): to be
  /// called between two products of a pass. Returns whether anything changed. The first that gives way makes
  /// room for the ring, too, if that has no memory yet.
  bool resize(std::uint64_t bytes, std::uint32_t next_tensor);
  /// The same between two passes.
  bool resize_between_passes(std::uint64_t bytes);
  /// Ends the streaming of blocks whose rows are all back. As cheap as nothing when there are none.
  void end_returns(std::uint32_t next_tensor);

  const Statistics& statistics() const noexcept { return statistics_; }

 private:
  /// returning: has pages, but not all of its rows.
  enum class State : std::uint8_t { held, away, returning };
  struct Block {
    std::uint32_t first_tensor = 0, n_tensors = 0;  ///< In the stream's list.
    std::vector<std::byte*> places;                 ///< Of its tensors.
    State state = State::held;
  };
  void release(std::uint32_t idx);
  bool take_back(std::uint32_t idx);
  void restream(std::uint32_t next_tensor);

  WeightStore& store_;
  DenseStream& stream_;
  // Of the blocks that the plan pinned: block i of the store.
  std::vector<Block> blocks_;
  std::vector<DenseBlockFacts> facts_;
  std::vector<std::uint32_t> order_;  ///< In which they give way; the first `n_away_` have.
  std::size_t n_away_ = 0, n_returning_ = 0;
  std::vector<bool> streamed_;  ///< Per tensor of the stream, as it should be.
  std::uint64_t bytes_ = 0, planned_bytes_ = 0;
  Statistics statistics_;
};

}  // namespace sluice::residency
