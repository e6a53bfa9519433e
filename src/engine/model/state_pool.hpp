#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/ops.hpp"
#include "model/state_layout.hpp"

namespace sluice::engine {

/// The recurrent states of a model's sequences, allocated at opening: for each two slots, which hold the
/// states of all layers at one position, and a log of rows. Without state in the model: nothing.
class StatePool {
 public:
  /// `to` of the slots becomes the state behind n_rows rows of the log; model::Forward::replay.
  using Replay = std::function<void(const kernels::StateSlots& slots, std::uint32_t n_rows)>;

  /// Borrows `ops`. Throws Error(budget).
  StatePool(kernels::Ops& ops, const model::StateLayout& layout, std::uint32_t n_sequences);

  static std::uint64_t bytes_of_sequence(const model::StateLayout& layout) noexcept {
    return 2 * layout.slot_bytes + layout.log_bytes;
  }
  std::uint64_t bytes() const noexcept { return bytes_; }
  void set_replay(Replay replay) { replay_ = std::move(replay); }

 private:
  friend class StateSequence;
  kernels::Ops& ops_;
  std::uint64_t slot_bytes_, sequence_bytes_, bytes_;
  std::byte* base_ = nullptr;
  std::vector<std::uint32_t> free_;  ///< Places of sequences.
  Replay replay_;
};

/// The state of one sequence. It keeps an older state and the rows since then, so that it can go back to any
/// position between: the older one is copied by computing those rows again, which gives the same bits. A pass
/// that fails is undone in the same way. The sequence's owner keeps the length. Not thread-safe.
class StateSequence {
 public:
  /// Borrows the pool, which must have a place left and must live until this dies or is told to forget it.
  explicit StateSequence(StatePool& pool);
  ~StateSequence();
  StateSequence(const StateSequence&) = delete;
  StateSequence& operator=(const StateSequence&) = delete;

  /// Where the next pass, of `n_rows` of its rows, finds and leaves the state. commit() or rewind() must
  /// follow.
  kernels::StateSlots begin_pass(std::uint32_t n_rows) noexcept;
  /// The pass is complete.
  void commit() noexcept;
  /// The most that is at most `n` and that rewind() and share() can reach: `n`, the older position, or 0.
  std::uint32_t reachable(std::uint32_t n) const noexcept;
  /// Goes back to `n`, which must be reachable; a pass that has begun is undone.
  void rewind(std::uint32_t n) noexcept;
  /// Begins with another one's state at `n`, which must be reachable there. Requires that this one is at 0.
  void share(const StateSequence& from, std::uint32_t n) noexcept;
  /// The pool is gone.
  void forget() noexcept { pool_ = nullptr; }

 private:
  bool is_empty() const noexcept { return pool_ == nullptr || pool_->sequence_bytes_ == 0; }
  std::byte* slot(std::uint32_t i) const noexcept;
  std::byte* log() const noexcept { return slot(2); }
  /// Null for the state of no tokens.
  const std::byte* older() const noexcept { return older_at_ == 0 ? nullptr : slot(older_slot_); }
  /// Writes the state at `n`, between the older one and the last of the log, to `to`.
  void write(std::uint32_t n, std::byte* to) const noexcept;

  StatePool* pool_;
  std::uint32_t place_ = 0;
  std::uint32_t older_slot_ = 0;  ///< The other one has the state at `at_`, unless that is older_at_.
  std::uint32_t older_at_ = 0, at_ = 0;
  std::uint32_t n_logged_ = 0;  ///< Rows of the log, from older_at_ on. They reach to at_ or there are none.
  std::uint32_t n_rows_ = 0;    ///< Of the pass that has begun.
};

}  // namespace sluice::engine
