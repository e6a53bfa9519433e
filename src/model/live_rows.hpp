#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "model/arena.hpp"
#include "sluice/error.hpp"

namespace sluice::model {

/// Why a row is computed: to go on with a sequence, or to read a longer text that it is given. What decoding
/// rows use is worth keeping in the cache, and their experts can be guessed a layer ahead.
enum class RowKind : std::uint8_t { decode, prompt };

/// The rows of one pass over the layers: tokens of one or several sequences.
struct PassRows {
  std::span<const std::int32_t> tokens;
  kernels::PassTables tables;                  ///< Of as many rows.
  std::span<const std::uint32_t> logits_rows;  ///< Rows whose logits are wanted, rising.
  std::span<const RowKind> kinds;              ///< Of each row.
  /// A flag for each of tables.sequences, or null; raised, it ends this sequence's part of the pass.
  std::span<const std::atomic<bool>* const> cancels;
};

/// A sequence whose part of a pass was given up; the others' went on.
struct SequenceFailure {
  std::uint32_t sequence = 0;  ///< In PassRows::tables.sequences.
  ErrorCode code = ErrorCode::io;
  std::string message;
};

/// The rows of a pass that are still computed, and the sequences that failed.
class LiveRows {
 public:
  /// Takes its lists from the arena; refers to `rows`.
  LiveRows(Arena& arena, const PassRows& rows);
  /// What it takes for passes of `n_rows` rows.
  static void needs(Arena& counter, std::uint32_t n_rows);

  std::uint32_t n_rows() const noexcept { return n_rows_; }
  /// As PassRows::tables, of the rows that are left.
  kernels::PassTables tables() const noexcept;
  std::uint32_t sequence_of(std::uint32_t row) const noexcept { return lists_.sequence_of[row]; }
  RowKind kind(std::uint32_t row) const noexcept { return lists_.kinds[row]; }
  /// The first k_max_decode_rows rows that decode.
  std::span<const std::uint32_t> decode_rows() const noexcept {
    return lists_.decode_rows.first(n_decode_rows_);
  }
  /// Rows whose logits are wanted, rising, and their places in PassRows::logits_rows.
  std::span<const std::uint32_t> logits_rows() const noexcept { return lists_.logits_rows.first(n_logits_); }
  std::uint32_t logits_index(std::size_t i) const noexcept { return lists_.logits_index[i]; }

  /// The rows of the sequence will be cut out; of several failures the first counts.
  void fail(std::uint32_t sequence, ErrorCode code, std::string message);
  /// Fails the sequences whose flags are raised.
  void fail_cancelled();
  /// Cuts out the rows of sequences that failed since the last call; false when there are none.
  bool cut();
  /// After a cut: the rows that are left, as they were numbered before.
  std::span<const std::uint32_t> kept() const noexcept { return lists_.kept.first(n_rows_); }
  std::vector<SequenceFailure>& failures() noexcept { return failures_; }

  /// Rows that are treated as decoding for the look-ahead at most.
  static constexpr std::uint32_t k_max_decode_rows = 16;

 private:
  struct Lists {
    std::span<std::uint32_t> positions, sequence_of, logits_rows, logits_index, kept, decode_rows;
    std::span<RowKind> kinds;
  };
  static Lists take(Arena& arena, std::uint32_t n_rows);
  void find_decode_rows();

  const PassRows& rows_;
  Lists lists_;
  std::uint32_t n_rows_ = 0, n_logits_ = 0, n_decode_rows_ = 0;
  std::size_t n_cut_ = 0;  ///< Failures whose rows are cut out.
  std::vector<SequenceFailure> failures_;
};

}  // namespace sluice::model
