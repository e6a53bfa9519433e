#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/kv_pages.hpp"
#include "kernels/ops.hpp"
#include "model/kv_layout.hpp"

namespace sluice::engine {

/// The KV cache of a model: a region of pages for each group, allocated at opening, so that the budget holds
/// whatever the sequences do.
class KvPool {
 public:
  /// `n_pages` of each group. Borrows `ops`. Throws Error(budget).
  KvPool(kernels::Ops& ops, std::span<const model::KvGroup> groups, std::span<const std::uint32_t> n_pages);

  std::size_t n_groups() const noexcept { return pages_.size(); }
  std::uint32_t window(std::size_t group) const noexcept { return windows_[group]; }
  KvPages& pages(std::size_t group) noexcept { return pages_[group]; }
  const KvPages& pages(std::size_t group) const noexcept { return pages_[group]; }
  std::span<const kernels::KvRegion> regions() const noexcept { return regions_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// A page with what `page` holds and no other user: the page itself, or a copy that takes its place.
  /// Requires a free page when it is shared.
  std::uint32_t make_private(std::size_t group, std::uint32_t page);

 private:
  kernels::Ops& ops_;
  std::vector<std::uint32_t> windows_;
  std::vector<KvPages> pages_;
  std::vector<kernels::KvRegion> regions_;
  std::uint64_t bytes_ = 0;
};

/// The pages of one sequence. Positions below its length are computed; the sequence's owner keeps the length.
/// Not thread-safe.
class KvSequence {
 public:
  /// Borrows the pool, which must live until release().
  KvSequence(KvPool& pool, std::uint32_t n_ctx);

  /// Pages of group `group` that must be free before n_more positions can follow the first n_tokens. For a
  /// group with a window: nothing, the plan has room for what every sequence keeps and a pass.
  std::uint64_t n_wanted(std::size_t group, std::uint32_t n_tokens, std::size_t n_more) const noexcept;
  /// Makes pages for positions [n_tokens, end) that no other sequence sees. Requires that they are free.
  void reserve(std::uint32_t n_tokens, std::uint32_t end);
  /// The sequence has n_tokens positions now: gives back what no window sees any more.
  void leave_behind(std::uint32_t n_tokens) noexcept;
  /// Goes back to the first n positions, or to none where a window has left behind what it would see. Returns
  /// how many are left. What lies at most k_max_rewind behind the end is always reached.
  std::uint32_t rewind(std::uint32_t n) noexcept;
  /// Begins with the first n positions of another one, or with none, as rewind(). Requires that it is empty.
  std::uint32_t share(const KvSequence& from, std::uint32_t n) noexcept;
  /// The pool is gone.
  void forget() noexcept;

  /// Valid until the next call that is not const.
  kernels::SequenceView view() const noexcept;

 private:
  struct Table {
    std::vector<std::uint32_t> pages;  ///< Those before `first` are k_no_page.
    std::size_t first = 0;
  };
  /// `n` as far as all groups still have what the positions before it see, or 0.
  std::uint32_t reachable(std::uint32_t n) const noexcept;

  KvPool* pool_;
  std::array<Table, kernels::k_max_kv_groups> tables_;
};

/// Pages for `n_tokens` positions.
constexpr std::uint64_t pages_for(std::uint64_t n_tokens) noexcept {
  return (n_tokens + kernels::KvShape::page_tokens - 1) / kernels::KvShape::page_tokens;
}

}  // namespace sluice::engine
