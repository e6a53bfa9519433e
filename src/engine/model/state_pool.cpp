#include "engine/model/state_pool.hpp"

#include "base/check.hpp"

namespace sluice::engine {

StatePool::StatePool(kernels::Ops& ops, const model::StateLayout& layout, std::uint32_t n_sequences)
    : ops_(ops),
      slot_bytes_(layout.slot_bytes),
      sequence_bytes_(bytes_of_sequence(layout)),
      bytes_(sequence_bytes_ * n_sequences) {
  if (bytes_ == 0) return;
  base_ = ops.allocate(bytes_);
  for (std::uint32_t place = n_sequences; place > 0; --place) free_.push_back(place - 1);
}

StateSequence::StateSequence(StatePool& pool) : pool_(&pool) {
  if (is_empty()) return;
  SLUICE_CHECK(!pool.free_.empty());
  place_ = pool.free_.back();
  pool.free_.pop_back();
}

StateSequence::~StateSequence() {
  if (!is_empty()) pool_->free_.push_back(place_);
}

std::byte* StateSequence::slot(std::uint32_t i) const noexcept {
  return pool_->base_ + place_ * pool_->sequence_bytes_ + i * pool_->slot_bytes_;
}

kernels::StateSlots StateSequence::begin_pass(std::uint32_t n_rows) noexcept {
  if (is_empty()) return {};
  SLUICE_CHECK(n_rows_ == 0 && n_rows > 0);
  const bool has_gap = n_logged_ != at_ - older_at_;
  if (has_gap || n_logged_ + n_rows > model::k_state_log_rows) {
    // What was the latest becomes the older one.
    if (at_ != older_at_) older_slot_ = 1 - older_slot_;
    older_at_ = at_;
    n_logged_ = 0;
  }
  n_rows_ = n_rows;
  kernels::StateSlots slots;
  slots.to = slot(1 - older_slot_);
  slots.from = at_ == older_at_ ? older() : slots.to;
  if (n_rows <= model::k_state_log_rows) {
    slots.log = log();
    slots.log_row = n_logged_;
  }
  return slots;
}

void StateSequence::commit() noexcept {
  if (is_empty()) return;
  at_ += n_rows_;
  if (n_logged_ + n_rows_ <= model::k_state_log_rows) n_logged_ += n_rows_;
  n_rows_ = 0;
}

std::uint32_t StateSequence::reachable(std::uint32_t n) const noexcept {
  if (is_empty() || n == at_) return n;
  if (n >= older_at_ && n <= older_at_ + n_logged_) return n;
  return n >= older_at_ ? older_at_ : 0;
}

void StateSequence::write(std::uint32_t n, std::byte* to) const noexcept {
  if (n != older_at_) {
    pool_->replay_({older(), to, log(), 0}, n - older_at_);
  } else {
    pool_->ops_.copy(to, slot(older_slot_), pool_->slot_bytes_);
  }
}

void StateSequence::rewind(std::uint32_t n) noexcept {
  if (is_empty() || (n == at_ && n_rows_ == 0)) return;
  SLUICE_CHECK(reachable(n) == n);
  n_rows_ = 0;
  if (n == 0) {
    older_at_ = at_ = n_logged_ = 0;
    return;
  }
  // The slot of the latest state has that of another position, or of a pass that was not completed.
  SLUICE_CHECK(n >= older_at_ && n <= older_at_ + n_logged_);
  if (n != older_at_) write(n, slot(1 - older_slot_));
  n_logged_ = n - older_at_;
  at_ = n;
}

void StateSequence::share(const StateSequence& from, std::uint32_t n) noexcept {
  if (is_empty() || n == 0) return;
  SLUICE_CHECK(at_ == 0 && n_rows_ == 0 && from.reachable(n) == n);
  std::byte* const to = slot(older_slot_);
  if (n == from.at_ && n != from.older_at_) {
    pool_->ops_.copy(to, from.slot(1 - from.older_slot_), pool_->slot_bytes_);
  } else {
    from.write(n, to);
  }
  older_at_ = at_ = n;
  n_logged_ = 0;
}

}  // namespace sluice::engine
