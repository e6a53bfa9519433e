#include "residency/dense_tiers.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace sluice::residency {

DenseTiers::DenseTiers(std::span<const PlacedBlock> blocks, WeightStore& store, DenseStream& stream)
    : store_(store), stream_(stream) {
  std::uint32_t n_tensors = 0;
  for (const PlacedBlock& placed : blocks) {
    const auto n = static_cast<std::uint32_t>(placed.tensors.size());
    if (placed.is_pinned) {
      Block block{n_tensors, n, {}, State::held};
      for (const gguf::TensorInfo* tensor : placed.tensors) {
        block.places.push_back(store.find(*tensor));
        SLUICE_CHECK(block.places.back() != nullptr);
      }
      facts_.push_back({placed.role, store.block_bytes(blocks_.size())});
      planned_bytes_ += facts_.back().bytes;
      blocks_.push_back(std::move(block));
    }
    streamed_.insert(streamed_.end(), n, !placed.is_pinned);
    n_tensors += n;
  }
  bytes_ = planned_bytes_;
  order_ = release_order(facts_);
}

bool DenseTiers::resize(std::uint64_t bytes, std::uint32_t next_tensor) {
  const std::size_t n_before = n_away_;
  if (bytes < bytes_ && !stream_.is_streaming()) bytes -= std::min(bytes, stream_.ring_bytes());
  const std::size_t n_wanted = count_released(facts_, order_, bytes);
  while (n_away_ < n_wanted) release(order_[n_away_++]);
  while (n_away_ > n_wanted && take_back(order_[n_away_ - 1])) --n_away_;
  if (n_away_ > n_before) restream(next_tensor);
  return n_away_ != n_before;
}

bool DenseTiers::resize_between_passes(std::uint64_t bytes) {
  stream_.begin_pass();  // After a pass that was given up, reading starts at the first tensor again.
  return resize(bytes, 0);
}

void DenseTiers::release(std::uint32_t idx) {
  Block& block = blocks_[idx];
  if (block.state == State::returning) --n_returning_;
  block.state = State::away;
  store_.release_block(idx);
  bytes_ -= facts_[idx].bytes;
  ++statistics_.n_released;
  for (std::uint32_t i = 0; i < block.n_tensors; ++i) {
    stream_.keep(block.first_tensor + i, nullptr);
    streamed_[block.first_tensor + i] = true;
  }
}

bool DenseTiers::take_back(std::uint32_t idx) {
  Block& block = blocks_[idx];
  if (!store_.restore_block(idx)) return false;
  block.state = State::returning;
  ++n_returning_;
  bytes_ += facts_[idx].bytes;
  ++statistics_.n_returned;
  for (std::uint32_t i = 0; i < block.n_tensors; ++i) stream_.keep(block.first_tensor + i, block.places[i]);
  return true;
}

void DenseTiers::end_returns(std::uint32_t next_tensor) {
  if (n_returning_ == 0) return;
  const std::size_t n_before = n_returning_;
  for (Block& block : blocks_) {
    if (block.state != State::returning) continue;
    const std::uint32_t begin = block.first_tensor, end = begin + block.n_tensors;
    bool is_whole = true;
    for (std::uint32_t tensor = begin; tensor < end; ++tensor) is_whole = is_whole && stream_.is_kept(tensor);
    if (!is_whole) continue;
    block.state = State::held;
    --n_returning_;
    for (std::uint32_t tensor = begin; tensor < end; ++tensor) {
      stream_.keep(tensor, nullptr);
      streamed_[tensor] = false;
    }
  }
  if (n_returning_ != n_before) restream(next_tensor);
}

void DenseTiers::restream(std::uint32_t next_tensor) {
  stream_.set_streamed(streamed_, next_tensor);
}

}  // namespace sluice::residency
