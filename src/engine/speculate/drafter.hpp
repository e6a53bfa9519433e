#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/model.hpp"

namespace sluice::engine {

/// A draft model that follows a text and continues it greedily. Its KV cache holds a run of the text's tokens
/// that may begin later than the text: after a long pause, or when its own context is full, it starts with
/// the last tokens only.
class Drafter {
 public:
  /// Guesses only tokens below `n_tokens`. Measures the draft's speed with a few of them.
  Drafter(Model model, std::uint32_t n_tokens);

  /// Of one guess, and of each token it has to catch up with; measured.
  double guess_ns() const noexcept { return guess_ns_; }
  double row_ns() const noexcept { return row_ns_; }
  /// Guesses it could make at most: its context must hold them and some of the text.
  std::uint32_t max_guesses() const noexcept { return model_.plan().n_ctx / 2; }
  /// Tokens of `text` it must compute before the first guess, when it may spend `most_ns` on catching up. At
  /// least one; more than most_ns allows become the last k_least_rows or as many as it does allow.
  std::uint32_t rows_behind(std::span<const TokenId> text, double most_ns) const noexcept;

  /// Continues `text` by up to `n` greedy tokens. Fewer after an end token, unless `past_end`; none when
  /// cancelled. Requires 1 <= n <= max_guesses().
  void guess(std::span<const TokenId> text, std::uint32_t n, double most_ns, bool past_end,
             std::vector<TokenId>& out);
  /// The first n_accepted of the last guesses are now part of the text, the others are not.
  void note_accepted(std::uint32_t n_accepted);
  /// The text was cut to its first `n` tokens.
  void truncate(std::size_t n);

  Model& model() noexcept { return model_; }

 private:
  std::size_t covered() const noexcept { return start_ + sequence_.n_tokens(); }
  bool must_restart(std::size_t n_text, std::uint32_t n_guesses, double most_ns) const noexcept;
  std::uint32_t window(std::size_t n_text, double most_ns) const noexcept;
  /// Computes tokens and returns the likeliest next one.
  TokenId step(std::span<const TokenId> tokens);

  Model model_;
  Sequence sequence_;
  std::uint32_t n_tokens_;
  std::size_t start_ = 0;    ///< Position in the text of the first token in the KV cache.
  std::uint32_t n_fed_ = 0;  ///< Guesses in the KV cache, behind the text.
  double guess_ns_ = 0, row_ns_ = 0;
};

}  // namespace sluice::engine
