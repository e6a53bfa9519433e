#include "sluice/perplexity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/test_data.hpp"

namespace sluice {
namespace {

constexpr std::uint32_t k_window = 32;

class Perplexity : public ::testing::Test {
 protected:
  static Model open() {
    OpenOptions options;
    options.n_ctx = k_window;
    options.n_threads = 1;
    return Model::open(test::builtin_model("tales-draft-3.7m-Q8_0.gguf"), options);
  }

  static std::string story() {
    return "Once upon a time there was a little girl who had a red ball. Every day she played with it in the "
           "park. One day the "
           "ball rolled far away under a big tree, and a small brown dog found it. The dog wanted to play "
           "too, so they played "
           "together until the sun went down. Then they walked home, and her mother gave them both something "
           "good to eat. The "
           "girl was happy because she had found a new friend, and the dog slept at her feet all night long.";
  }

  Model model = open();
  std::vector<TokenId> tokens = model.tokenizer().encode(story());

  PerplexityResult run(std::span<const TokenId> text, std::uint32_t n_ctx = k_window,
                       std::uint32_t max_chunks = 0) {
    return perplexity(model, text, {.n_ctx = n_ctx, .max_chunks = max_chunks});
  }

  /// The convention written out once more, in long double: scores of the window that starts at `start`.
  std::vector<long double> window_nlls(std::size_t start) {
    Sequence sequence = model.new_sequence();
    std::vector<long double> nlls;
    for (std::size_t i = 0; i + 1 < k_window; ++i) {
      const TokenId token = tokens[start + i];
      const StepItem item{&sequence, {&token, 1}, LogitsWanted::last};
      model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
        if (i < k_window / 2) return;
        long double sum = 0;
        for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
        const auto next = static_cast<std::size_t>(tokens[start + i + 1]);
        nlls.push_back(std::log(sum) - static_cast<long double>(logits[next]));
      });
    }
    return nlls;
  }
};

TEST_F(Perplexity, ScoresTheSecondHalfOfEachWindow) {
  ASSERT_GE(tokens.size(), 2 * k_window + 1);
  const std::size_t n_windows = tokens.size() / k_window;
  std::vector<long double> nlls;
  for (std::size_t window = 0; window < n_windows; ++window) {
    const auto more = window_nlls(window * k_window);
    nlls.insert(nlls.end(), more.begin(), more.end());
  }
  long double mean = 0, variance = 0;
  for (const long double nll : nlls) mean += nll / static_cast<long double>(nlls.size());
  for (const long double nll : nlls)
    variance += (nll - mean) * (nll - mean) / static_cast<long double>(nlls.size());

  const PerplexityResult result = run(tokens);
  EXPECT_EQ(result.n_chunks, n_windows);
  EXPECT_EQ(result.n_scored, n_windows * (k_window / 2 - 1));
  // Each exponential has the relative error of a float (2^-24) or two, and so has their sum.
  const double tolerance = 4 * std::ldexp(1.0, -24);
  EXPECT_NEAR(result.mean_nll, static_cast<double>(mean), tolerance);
  EXPECT_NEAR(result.perplexity, static_cast<double>(std::exp(mean)),
              2 * tolerance * static_cast<double>(std::exp(mean)));
  const double error =
      static_cast<double>(std::exp(mean) * std::sqrt(variance / static_cast<long double>(nlls.size() - 1)));
  EXPECT_NEAR(result.std_error, error, 1e-5 * error);
}

TEST_F(Perplexity, TextTheModelKnowsIsLikelierThanTheSameWordsShuffled) {
  std::vector<TokenId> shuffled = tokens;
  std::reverse(shuffled.begin(), shuffled.end());
  EXPECT_LT(run(tokens).perplexity * 2, run(shuffled).perplexity);
}

TEST_F(Perplexity, ReportsEachWindowAndStopsAtTheLimit) {
  std::vector<std::uint32_t> seen;
  const PerplexityResult result =
      perplexity(model, tokens, {.n_ctx = k_window, .max_chunks = 2},
                 [&seen](const PerplexityResult& so_far) { seen.push_back(so_far.n_chunks); });
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(result.n_chunks, 2u);
  EXPECT_EQ(run(std::span(tokens).first(2 * k_window)).mean_nll, result.mean_nll);
}

TEST_F(Perplexity, RefusesWhatItCannotMeasure) {
  const auto refused = [this](std::span<const TokenId> text, std::uint32_t n_ctx) {
    try {
      run(text, n_ctx);
    } catch (const Error& error) {
      return error.code() == ErrorCode::invalid_argument;
    }
    return false;
  };
  EXPECT_TRUE(refused(std::span(tokens).first(2 * k_window - 1), k_window));
  EXPECT_TRUE(refused(tokens, k_window + 1));
  EXPECT_TRUE(refused(tokens, 3));
  EXPECT_TRUE(refused(tokens, 0));
  std::vector<TokenId> foreign = tokens;
  foreign.back() = static_cast<TokenId>(model.info().n_vocab);
  EXPECT_TRUE(refused(foreign, k_window));
}

}  // namespace
}  // namespace sluice
