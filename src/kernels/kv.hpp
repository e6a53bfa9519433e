#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::kernels {

// The KV cache is paged: a page holds `page_tokens` consecutive positions of one sequence for all layers of a
// KV group. Each group has a region of its own, and a page is known by its number in the region.

/// K and V of one layer in a page: K [n_kv_heads, page_tokens, k_head_dim] then V [n_kv_heads, page_tokens,
/// v_head_dim], both f16. Attention reads one head at a time, so what it reads is contiguous.
struct KvShape {
  std::uint32_t n_kv_heads = 0;
  std::uint32_t k_head_dim = 0;
  std::uint32_t v_head_dim = 0;
  static constexpr std::uint32_t page_tokens = 64;
  std::uint64_t k_bytes() const noexcept { return std::uint64_t{page_tokens} * n_kv_heads * k_head_dim * 2; }
  std::uint64_t v_bytes() const noexcept { return std::uint64_t{page_tokens} * n_kv_heads * v_head_dim * 2; }
  std::uint64_t layer_bytes() const noexcept { return k_bytes() + v_bytes(); }
};

/// Where the K and V of a layer lie.
struct KvView {
  KvShape shape;
  std::uint32_t group = 0;         ///< In PassTables::regions and SequenceView::pages.
  std::uint64_t offset_bytes = 0;  ///< Within a page.
};

constexpr std::size_t k_max_kv_groups = 4;

/// Stands for a page that lies wholly before its group's window and is not there any more.
constexpr std::uint32_t k_no_page = 0xffff'ffff;

/// The pages of one sequence.
struct SequenceView {
  /// For each group: pages[group][p / page_tokens] is the page of position p. What no row of the pass sees
  /// may be k_no_page.
  std::array<std::span<const std::uint32_t>, k_max_kv_groups> pages{};
};

/// The memory of a group: page i starts at base + i * page_bytes.
struct KvRegion {
  std::byte* base = nullptr;
  std::uint64_t page_bytes = 0;
};

/// What all layers of a pass share. Rows of one sequence follow one another by rising position, and rows of
/// different sequences may share a pass.
struct PassTables {
  std::span<const std::uint32_t> positions;    ///< Of each row, in its sequence.
  std::span<const std::uint32_t> sequence_of;  ///< Of each row: its place in `sequences`.
  std::span<const SequenceView> sequences;
  std::span<const KvRegion> regions;  ///< By group.
};

}  // namespace sluice::kernels
