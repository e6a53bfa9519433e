#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::residency {

/// Layers whose KV entries share pages.
struct KvGroupFacts {
  std::uint64_t page_bytes = 0;
  std::uint32_t window = 0;  ///< Its layers see only so many of the last positions; 0: all.
};

/// What a KV cache must hold.
struct KvDemand {
  std::uint32_t n_ctx = 0;        ///< Positions of one sequence at most.
  std::uint32_t n_sequences = 1;  ///< At once, at most.
  std::uint64_t n_tokens = 0;     ///< Positions of all sequences together; at least n_ctx.
  std::uint32_t n_rows = 1;       ///< Rows of a pass at most.
};

/// Positions behind its end that a sequence keeps in a group with a window: those that the window of its next
/// token still sees, and of the tokens that it may go back to (k_max_rewind).
std::uint64_t kept_positions(std::uint32_t window) noexcept;

/// Pages for `n_tokens` positions.
constexpr std::uint64_t pages_for(std::uint64_t n_tokens, std::uint32_t page_tokens) noexcept {
  return (n_tokens + page_tokens - 1) / page_tokens;
}

/// Pages that a group needs so that the demand is met however the positions are spread over the sequences.
/// Without a window that is the positions and a page of each sequence that is not full. With one it is for
/// each sequence what it keeps, and the rows of a pass. Never more than whole contexts take. Pure.
std::uint64_t kv_pages(const KvGroupFacts& group, std::uint32_t page_tokens, const KvDemand& demand) noexcept;

/// Bytes of those pages in all groups.
std::uint64_t kv_bytes(std::span<const KvGroupFacts> groups, std::uint32_t page_tokens,
                       const KvDemand& demand) noexcept;

}  // namespace sluice::residency
