#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::kernels {

// The KV cache is paged: a page holds `page_tokens` consecutive positions of one sequence for all layers of a
// KV group. Each group has a region of its own, and a page is known by its number in the region.

/// How keys and values are kept: as f16, or in blocks of 32 elements of a head: the scale as f16, then 32
/// integers of 8 bits (GGUF's Q8_0).
enum class KvType : std::uint8_t { f16, q8_0 };
constexpr std::uint32_t k_kv_block = 32;
constexpr std::uint32_t k_kv_block_bytes = 2 + k_kv_block;

/// K and V of one layer in a page: K [n_kv_heads, page_tokens, k_head_dim] then V [n_kv_heads, page_tokens,
/// v_head_dim]. Attention reads one head at a time, so what it reads is contiguous. The head dimensions of
/// q8_0 are multiples of k_kv_block. Where values are parts of keys, only K is kept.
struct KvShape {
  std::uint32_t n_kv_heads = 0;
  std::uint32_t k_head_dim = 0;
  std::uint32_t v_head_dim = 0;
  KvType type = KvType::f16;
  bool v_in_k = false;  ///< A value is the first v_head_dim elements of its key.
  static constexpr std::uint32_t page_tokens = 64;
  /// Of one position of one head.
  std::uint64_t head_bytes(std::uint32_t dim) const noexcept {
    return type == KvType::f16 ? std::uint64_t{dim} * 2 : std::uint64_t{dim} / k_kv_block * k_kv_block_bytes;
  }
  std::uint64_t k_bytes() const noexcept { return page_tokens * n_kv_heads * head_bytes(k_head_dim); }
  std::uint64_t v_bytes() const noexcept {
    return v_in_k ? 0 : page_tokens * n_kv_heads * head_bytes(v_head_dim);
  }
  /// Where V begins, and the elements from one value of a head to the next.
  std::uint64_t v_offset() const noexcept { return v_in_k ? 0 : k_bytes(); }
  std::uint32_t v_step() const noexcept { return v_in_k ? k_head_dim : v_head_dim; }
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

/// Where a pass finds the recurrent state of one sequence and where it leaves it; layers know their places.
struct StateSlots {
  const std::byte* from = nullptr;  ///< Null: all zero. May be `to`.
  std::byte* to = nullptr;          ///< Null in models without.
  /// Of the rows that make the state, so that they can be taken back; null: not kept.
  std::byte* log = nullptr;
  std::uint32_t log_row = 0;  ///< The first row of the log that the pass writes.
};

/// The memory of one sequence.
struct SequenceView {
  /// For each group: pages[group][p / page_tokens] is the page of position p. What no row of the pass sees
  /// may be k_no_page.
  std::array<std::span<const std::uint32_t>, k_max_kv_groups> pages{};
  StateSlots state;
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
