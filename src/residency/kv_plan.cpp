#include "residency/kv_plan.hpp"

#include <algorithm>

#include "sluice/options.hpp"

namespace sluice::residency {

std::uint64_t kept_positions(std::uint32_t window) noexcept {
  return std::uint64_t{window} - 1 + k_max_rewind;
}

std::uint64_t kv_pages(const KvGroupFacts& group, std::uint32_t page_tokens,
                       const KvDemand& demand) noexcept {
  const std::uint64_t n_sequences = demand.n_sequences;
  const std::uint64_t all = n_sequences * pages_for(demand.n_ctx, page_tokens);
  if (group.window == 0) return std::min(all, pages_for(demand.n_tokens, page_tokens) + n_sequences - 1);
  // A run of n positions lies in (n + page_tokens - 2) / page_tokens + 1 pages at most, rounded down.
  const std::uint64_t positions =
      n_sequences * (kept_positions(group.window) + page_tokens - 2) + demand.n_rows;
  return std::min(all, positions / page_tokens + n_sequences);
}

std::uint64_t kv_bytes(std::span<const KvGroupFacts> groups, std::uint32_t page_tokens,
                       const KvDemand& demand) noexcept {
  std::uint64_t bytes = 0;
  for (const KvGroupFacts& group : groups) bytes += group.page_bytes * kv_pages(group, page_tokens, demand);
  return bytes;
}

}  // namespace sluice::residency
