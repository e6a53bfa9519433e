#include "engine/speculate/lookup_index.hpp"

#include <algorithm>
#include <bit>

#include "base/random.hpp"

namespace sluice::engine {

LookupIndex::LookupIndex(std::uint32_t n_tokens) {
  constexpr std::uint32_t k_least_slots = 64;
  const std::uint32_t n_slots = std::bit_ceil(std::clamp(n_tokens, k_least_slots, k_max_slots));
  mask_ = n_slots - 1;
  for (auto& table : after_) table.assign(n_slots, 0);
}

std::uint32_t LookupIndex::slot(std::span<const TokenId> run) const noexcept {
  // The steps of SplitMix64's finalizer, one round for each token.
  std::uint64_t x = run.size();
  for (const TokenId token : run) {
    x = base::SplitMix64::mix((x ^ static_cast<std::uint32_t>(token)) * 0xbf58476d1ce4e5b9u);
  }
  return static_cast<std::uint32_t>(x) & mask_;
}

void LookupIndex::push(TokenId token) {
  // Only now do the runs at the end of the text have something that follows them.
  const std::span<const TokenId> text(tokens_);
  for (std::uint32_t run = k_min_run; run <= k_max_run && run <= text.size(); ++run)
    after_[run - k_min_run][slot(text.last(run))] = static_cast<std::uint32_t>(text.size());
  tokens_.push_back(token);
}

void LookupIndex::truncate(std::size_t n) noexcept {
  if (n < tokens_.size()) tokens_.resize(n);
}

LookupIndex::Match LookupIndex::find() const noexcept {
  const std::span<const TokenId> text(tokens_);
  for (std::uint32_t run = k_max_run; run >= k_min_run; --run) {
    if (text.size() <= run) continue;
    const std::span<const TokenId> end = text.last(run);
    const std::uint32_t next = after_[run - k_min_run][slot(end)];
    // A position that truncation left behind may lie beyond the text, or at its end.
    if (next < run || next >= text.size()) continue;
    if (std::equal(end.begin(), end.end(), text.begin() + (next - run))) return {run, next};
  }
  return {};
}

void LookupIndex::copy(const Match& match, std::uint32_t n, std::vector<TokenId>& out) const {
  out.clear();
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::size_t at = std::size_t{match.next} + i;
    out.push_back(at < tokens_.size() ? tokens_[at] : out[at - tokens_.size()]);
  }
}

}  // namespace sluice::engine
