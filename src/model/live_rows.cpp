#include "model/live_rows.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace sluice::model {

LiveRows::Lists LiveRows::take(Arena& arena, std::uint32_t n_rows) {
  Lists lists;
  lists.positions = arena.list<std::uint32_t>(n_rows);
  lists.sequence_of = arena.list<std::uint32_t>(n_rows);
  lists.logits_rows = arena.list<std::uint32_t>(n_rows);
  lists.logits_index = arena.list<std::uint32_t>(n_rows);
  lists.kept = arena.list<std::uint32_t>(n_rows);
  lists.decode_rows = arena.list<std::uint32_t>(k_max_decode_rows);
  lists.kinds = arena.list<RowKind>(n_rows);
  return lists;
}

void LiveRows::needs(Arena& counter, std::uint32_t n_rows) {
  take(counter, n_rows);
}

LiveRows::LiveRows(Arena& arena, const PassRows& rows) : rows_(rows) {
  n_rows_ = static_cast<std::uint32_t>(rows.tokens.size());
  n_logits_ = static_cast<std::uint32_t>(rows.logits_rows.size());
  const kernels::PassTables& tables = rows.tables;
  SLUICE_CHECK(tables.positions.size() == n_rows_ && tables.sequence_of.size() == n_rows_);
  SLUICE_CHECK(rows.kinds.size() == n_rows_ && n_logits_ <= n_rows_);
  SLUICE_CHECK(rows.cancels.empty() || rows.cancels.size() == tables.sequences.size());
  lists_ = take(arena, n_rows_);
  std::copy(tables.positions.begin(), tables.positions.end(), lists_.positions.begin());
  std::copy(tables.sequence_of.begin(), tables.sequence_of.end(), lists_.sequence_of.begin());
  std::copy(rows.kinds.begin(), rows.kinds.end(), lists_.kinds.begin());
  std::copy(rows.logits_rows.begin(), rows.logits_rows.end(), lists_.logits_rows.begin());
  for (std::uint32_t i = 0; i < n_logits_; ++i) lists_.logits_index[i] = i;
  find_decode_rows();
}

void LiveRows::find_decode_rows() {
  n_decode_rows_ = 0;
  for (std::uint32_t row = 0; row < n_rows_ && n_decode_rows_ < k_max_decode_rows; ++row) {
    if (lists_.kinds[row] == RowKind::decode) lists_.decode_rows[n_decode_rows_++] = row;
  }
}

kernels::PassTables LiveRows::tables() const noexcept {
  kernels::PassTables tables = rows_.tables;
  tables.positions = lists_.positions.first(n_rows_);
  tables.sequence_of = lists_.sequence_of.first(n_rows_);
  return tables;
}

void LiveRows::fail(std::uint32_t sequence, ErrorCode code, std::string message) {
  const bool is_known =
      std::any_of(failures_.begin(), failures_.end(),
                  [sequence](const SequenceFailure& failure) { return failure.sequence == sequence; });
  if (!is_known) failures_.push_back({sequence, code, std::move(message)});
}

void LiveRows::fail_cancelled() {
  for (std::uint32_t sequence = 0; sequence < rows_.cancels.size(); ++sequence) {
    const std::atomic<bool>* cancel = rows_.cancels[sequence];
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
      fail(sequence, ErrorCode::cancelled, "the computation was cancelled");
  }
}

bool LiveRows::cut() {
  if (n_cut_ == failures_.size()) return false;
  const auto has_failed = [this](std::uint32_t row) {
    return std::any_of(
        failures_.begin() + static_cast<std::ptrdiff_t>(n_cut_), failures_.end(),
        [&](const SequenceFailure& failure) { return failure.sequence == lists_.sequence_of[row]; });
  };
  std::uint32_t n_kept = 0, n_logits = 0, next_logits = 0;
  for (std::uint32_t row = 0; row < n_rows_; ++row) {
    const bool wants_logits = next_logits < n_logits_ && lists_.logits_rows[next_logits] == row;
    if (!has_failed(row)) {
      if (wants_logits) {
        lists_.logits_rows[n_logits] = n_kept;
        lists_.logits_index[n_logits++] = lists_.logits_index[next_logits];
      }
      lists_.positions[n_kept] = lists_.positions[row];
      lists_.sequence_of[n_kept] = lists_.sequence_of[row];
      lists_.kinds[n_kept] = lists_.kinds[row];
      lists_.kept[n_kept++] = row;
    }
    next_logits += wants_logits ? 1 : 0;
  }
  n_cut_ = failures_.size();
  const bool is_changed = n_kept != n_rows_;
  n_rows_ = n_kept;
  n_logits_ = n_logits;
  find_decode_rows();
  return is_changed;
}

}  // namespace sluice::model
