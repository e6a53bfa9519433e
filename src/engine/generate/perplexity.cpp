#include "sluice/perplexity.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.hpp"

namespace sluice {
namespace {

// Half a window is context and the last token is only predicted, so this is the least that scores anything.
constexpr std::uint32_t k_min_window = 4;

/// -log softmax(logits)[token], in nats.
double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  float max = -std::numeric_limits<float>::infinity();
  for (const float logit : logits) max = std::max(max, logit);
  double sum = 0.0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - max));
  const double nll = std::log(sum) - (static_cast<double>(logits[static_cast<std::size_t>(token)]) -
                                      static_cast<double>(max));
  if (!std::isfinite(nll)) {
    base::fail(
        ErrorCode::internal,
        "perplexity: the likelihood of token {} is {}; the model's weights or its computation are damaged",
        token, nll);
  }
  return nll;
}

/// Mean and spread of the scores so far.
class Scores {
 public:
  void add(double nll) noexcept {
    ++n_;
    // Welford's update: the sum of squares would lose digits over millions of tokens.
    const double delta = nll - mean_;
    mean_ += delta / static_cast<double>(n_);
    squares_ += delta * (nll - mean_);
  }

  void write(PerplexityResult& result) const noexcept {
    const double n = static_cast<double>(n_);
    result.n_scored = n_;
    result.mean_nll = mean_;
    result.perplexity = std::exp(mean_);
    // The error of the mean, carried through exp: d exp(x) = exp(x) dx. llama-perplexity: sqrt(var / (n -
    // 1)).
    result.std_error = n_ < 2 ? 0.0 : result.perplexity * std::sqrt(squares_ / n / (n - 1.0));
  }

 private:
  std::uint64_t n_ = 0;
  double mean_ = 0.0;
  double squares_ = 0.0;
};

void check_tokens(const Model& model, std::span<const TokenId> tokens) {
  const std::size_t n_vocab = model.info().n_vocab;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= n_vocab) {
      base::fail(ErrorCode::invalid_argument,
                 "perplexity: token {} at position {} is outside the vocabulary of {}", tokens[i], i,
                 n_vocab);
    }
  }
}

}  // namespace

void check_perplexity(std::size_t n_tokens, const PerplexityOptions& options, const Plan& plan) {
  if (options.n_ctx < k_min_window || options.n_ctx > plan.n_ctx) {
    base::fail(
        ErrorCode::invalid_argument,
        "perplexity: the window is {} tokens, expected {} to {}, the context the model was opened with",
        options.n_ctx, k_min_window, plan.n_ctx);
  }
  if (n_tokens / 2 < options.n_ctx) {
    base::fail(ErrorCode::invalid_argument,
               "perplexity: the text has {} tokens, expected at least {} (two windows of {}); take a longer "
               "text or a smaller window",
               n_tokens, 2 * std::uint64_t{options.n_ctx}, options.n_ctx);
  }
}

PerplexityResult perplexity(Model& model, std::span<const TokenId> tokens, const PerplexityOptions& options,
                            const std::function<void(const PerplexityResult&)>& on_chunk) {
  check_perplexity(tokens.size(), options, model.plan());
  check_tokens(model, tokens);
  const std::size_t n_ctx = options.n_ctx;
  const std::size_t n_windows = tokens.size() / n_ctx;
  const std::size_t n_chunks =
      options.max_chunks == 0 ? n_windows : std::min<std::size_t>(n_windows, options.max_chunks);
  const bool replace_first = model.tokenizer().adds_bos() && model.tokenizer().bos() >= 0;
  const std::size_t first_scored = n_ctx / 2;

  Scores scores;
  PerplexityResult result;
  Sequence sequence = model.new_sequence();
  std::vector<TokenId> window;
  for (std::size_t chunk = 0; chunk < n_chunks; ++chunk) {
    const std::span<const TokenId> source = tokens.subspan(chunk * n_ctx, n_ctx);
    // The last token is predicted but predicts nothing. One step for the whole window, although only its
    // second half is scored: two steps would read every streamed weight twice.
    window.assign(source.begin(), source.end() - 1);
    if (replace_first) window.front() = model.tokenizer().bos();
    sequence.rewind(0);
    const StepItem item{&sequence, window, LogitsWanted::all};
    model.step({&item, 1}, [&](std::size_t, std::size_t position, std::span<const float> logits) {
      if (position >= first_scored) scores.add(negative_log_likelihood(logits, source[position + 1]));
    });
    scores.write(result);
    result.n_chunks = static_cast<std::uint32_t>(chunk + 1);
    if (on_chunk) on_chunk(result);
  }
  return result;
}

}  // namespace sluice
