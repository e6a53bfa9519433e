#include "engine/speculate/drafter.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "sluice/error.hpp"

namespace sluice::engine {
namespace {

/// Tokens of the text it starts with at least: fewer say too little about what comes next.
constexpr std::uint32_t k_least_rows = 32;
/// Of the first measurement.
constexpr std::uint32_t k_trial_rows = 16, k_trial_steps = 2;
/// Share of a new time in the moving means.
constexpr double k_share = 1.0 / 8;

}  // namespace

Drafter::Drafter(Model model, std::uint32_t n_tokens)
    : model_(std::move(model)), sequence_(model_.new_sequence()), n_tokens_(n_tokens) {
  if (max_guesses() == 0) return;  // There is nothing to measure: a context of one token holds no guess.
  const std::vector<TokenId> tokens(std::min(k_trial_rows, sequence_.n_free() / 2), 0);
  for (std::uint32_t i = 0; i < k_trial_steps; ++i) {
    // The second time all weights have been touched.
    sequence_.rewind(0);
    const std::uint64_t start = base::now_ns();
    step(tokens);
    const std::uint64_t middle = base::now_ns();
    step({tokens.data(), 1});
    guess_ns_ = static_cast<double>(base::now_ns() - middle);
    row_ns_ = static_cast<double>(middle - start) / static_cast<double>(tokens.size());
  }
  sequence_.rewind(0);
}

std::uint32_t Drafter::window(std::size_t n_text, double most_ns) const noexcept {
  const double affordable = std::min(most_ns / std::max(row_ns_, 1.0), 1e9);
  const std::uint32_t n = std::max(k_least_rows, static_cast<std::uint32_t>(std::max(affordable, 0.0)));
  return static_cast<std::uint32_t>(std::min<std::size_t>({n, n_text, model_.plan().n_ctx / 2}));
}

bool Drafter::must_restart(std::size_t n_text, std::uint32_t n_guesses, double most_ns) const noexcept {
  const std::size_t behind = n_text - covered();
  return behind > window(n_text, most_ns) || behind + n_guesses > sequence_.n_free();
}

std::uint32_t Drafter::rows_behind(std::span<const TokenId> text, double most_ns) const noexcept {
  if (must_restart(text.size(), 1, most_ns)) return window(text.size(), most_ns);
  return static_cast<std::uint32_t>(text.size() - covered());
}

TokenId Drafter::step(std::span<const TokenId> tokens) {
  TokenId best = 0;
  const StepItem item{&sequence_, tokens, LogitsWanted::last};
  model_.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> all) {
    const auto logits = all.first(std::min<std::size_t>(all.size(), n_tokens_));
    best = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  });
  return best;
}

void Drafter::guess(std::span<const TokenId> text, std::uint32_t n, double most_ns, bool past_end,
                    std::vector<TokenId>& out) {
  out.clear();
  n_fed_ = 0;
  if (must_restart(text.size(), n, most_ns)) {
    sequence_.rewind(0);
    start_ = text.size() - window(text.size(), most_ns);
  }
  try {
    std::uint64_t before = base::now_ns();
    std::span<const TokenId> input = text.subspan(covered());
    for (bool is_guess = false;; is_guess = true) {
      const TokenId token = step(input);
      if (is_guess) ++n_fed_;
      const std::uint64_t now = base::now_ns();
      const double ns = static_cast<double>(now - before);
      if (input.size() == 1) guess_ns_ += k_share * (ns - guess_ns_);
      if (input.size() >= k_trial_rows)
        row_ns_ += k_share * (ns / static_cast<double>(input.size()) - row_ns_);
      before = now;
      out.push_back(token);
      if (out.size() == n || (!past_end && model_.tokenizer().is_end_of_generation(token))) return;
      input = std::span(out).last(1);
    }
  } catch (const Error& error) {
    // The model's own pass comes next and ends for the same reason.
    if (error.code() != ErrorCode::cancelled) throw;
    note_accepted(0);
    out.clear();
  }
}

void Drafter::note_accepted(std::uint32_t n_accepted) {
  sequence_.rewind(sequence_.n_tokens() - (n_fed_ - std::min(n_fed_, n_accepted)));
  n_fed_ = 0;
}

void Drafter::truncate(std::size_t n) {
  n_fed_ = 0;
  if (covered() <= n) return;
  sequence_.rewind(n > start_ ? static_cast<std::uint32_t>(n - start_) : 0);
  start_ = std::min(start_, n);
}

}  // namespace sluice::engine
