#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sluice/tokenizer.hpp"

namespace sluice::engine {

/// The tokens of a text, and where each run of two to four of them was last followed by something: prompt
/// lookup (Saxena 2023). What followed then is the guess of what follows now.
///
/// The tables keep positions only and are lossy: of two runs with the same slot the later one stays, and a
/// hit counts only when the tokens there are the same. So a token costs a fixed number of operations, and the
/// memory is bounded by 4 bytes per token and 12 bytes for each of at most k_max_slots.
class LookupIndex {
 public:
  static constexpr std::uint32_t k_min_run = 2, k_max_run = 4;
  static constexpr std::uint32_t k_max_slots = 1u << 16;

  /// For texts of about `n_tokens`; longer ones only find less.
  explicit LookupIndex(std::uint32_t n_tokens);

  void push(TokenId token);
  /// Forgets all but the first `n` tokens. What the forgotten ones displaced does not come back.
  void truncate(std::size_t n) noexcept;
  std::span<const TokenId> tokens() const noexcept { return tokens_; }

  /// What followed the last occurrence of the longest run of tokens that ends the text.
  struct Match {
    std::uint32_t run = 0;   ///< Tokens that agree, k_min_run to k_max_run; 0: there is none.
    std::uint32_t next = 0;  ///< Position of the token that followed.
  };
  Match find() const noexcept;

  /// Writes the `n` tokens from match.next on; where the text ends they go on with the guesses themselves, so
  /// that a repetition is continued for any length.
  void copy(const Match& match, std::uint32_t n, std::vector<TokenId>& out) const;

 private:
  std::uint32_t slot(std::span<const TokenId> run) const noexcept;

  std::vector<TokenId> tokens_;
  std::uint32_t mask_;
  /// By length of the run: position after its last occurrence, 0 when there is none.
  std::array<std::vector<std::uint32_t>, k_max_run - k_min_run + 1> after_;
};

}  // namespace sluice::engine
