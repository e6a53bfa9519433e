// Goal: the figures of verify() are those of their definitions, and references of other models are refused.
#include "sluice/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sluice/perplexity.hpp"
#include "support/reference_bytes.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t k_window = 32, k_n_chunks = 2, k_n_scored = 15;
constexpr std::size_t k_rows = 20 + k_window * k_n_chunks * sizeof(TokenId);

class Verify : public ::testing::Test {
 protected:
  static Model open_model() {
    OpenOptions options;
    options.n_ctx = k_window;
    options.n_threads = 1;
    return Model::open(test::builtin_model("tales-draft-3.7m-Q8_0.gguf"), options);
  }
  std::vector<TokenId> text() const {
    std::string story;
    for (int i = 0; i < 8; ++i)
      story += "Once upon a time there was a little fox. He liked to play in the park with a ball. ";
    return model.tokenizer().encode(story);
  }
  Reference reference_of(const std::vector<std::byte>& bytes) const {
    test::write_bytes(folder / "x.kld", bytes.data(), bytes.size());
    return Reference::open(folder / "x.kld");
  }
  std::size_t row_bytes() const { return 8 + 2 * ((model.info().n_vocab + 1) / 2 * 2); }

  Model model = open_model();
  std::vector<TokenId> tokens = text();
  test::TempDir folder;
};

TEST_F(Verify, AModelIsEqualToItself) {
  Reference reference = reference_of(test::make_reference(model, tokens, k_window, k_n_chunks).bytes);
  std::uint32_t n_calls = 0;
  const VerifyResult result = verify(
      model, reference, {}, [&](const VerifyResult& so_far) { EXPECT_EQ(so_far.n_chunks, ++n_calls); });
  EXPECT_EQ(n_calls, k_n_chunks);
  EXPECT_EQ(result.n_scored, k_n_chunks * k_n_scored);
  // Half a step of 16 / 65535 in each logarithm.
  constexpr double k_rounding = 8.0 / 65535;
  EXPECT_NEAR(result.mean_kl, 0, k_rounding);
  EXPECT_NEAR(result.max_kl, 0, k_rounding);
  EXPECT_EQ(result.n_same_top, result.n_scored);
  EXPECT_EQ(result.n_rated, result.n_scored);
  EXPECT_FALSE(result.first_parting);
  EXPECT_NEAR(std::log(result.perplexity), std::log(result.reference_perplexity), k_rounding);
  const PerplexityResult expected = perplexity(model, tokens, {.n_ctx = k_window, .max_chunks = k_n_chunks});
  EXPECT_NEAR(result.perplexity / expected.perplexity, 1, 1e-6);
}

TEST_F(Verify, FiguresAreThoseOfTheirDefinitions) {
  // A reference that holds all tokens to be equally likely.
  const std::uint32_t n_vocab = model.info().n_vocab;
  test::ReferenceBytes uniform(k_window, n_vocab, 1);
  for (std::uint32_t i = 0; i < k_window; ++i) uniform.add_token(tokens[i]);
  for (std::uint32_t i = 0; i < k_n_scored; ++i) uniform.add_row(std::vector<float>(n_vocab, 0.5f));
  std::vector<long double> divergences;
  {
    Sequence sequence = model.new_sequence();
    const StepItem item{&sequence, std::span(tokens).first(k_window - 1), LogitsWanted::all};
    model.step({&item, 1}, [&](std::size_t, std::size_t at, std::span<const float> logits) {
      if (at < k_window / 2) return;
      long double sum = 0, logit_sum = 0;
      for (const float logit : logits) {
        sum += std::exp(static_cast<long double>(logit));
        logit_sum += logit;
      }
      divergences.push_back(std::log(sum) - logit_sum / n_vocab -
                            std::log(static_cast<long double>(n_vocab)));
    });
  }
  Reference reference = reference_of(uniform.bytes);
  const VerifyResult result = verify(model, reference);
  ASSERT_EQ(result.n_scored, divergences.size());
  long double sum = 0;
  for (const long double kl : divergences) sum += kl;
  std::sort(divergences.begin(), divergences.end());
  EXPECT_NEAR(result.mean_kl, static_cast<double>(sum / k_n_scored), 1e-5);
  EXPECT_NEAR(result.median_kl, static_cast<double>(divergences[k_n_scored / 2]), 1e-5);
  EXPECT_NEAR(result.max_kl, static_cast<double>(divergences.back()), 1e-5);
  EXPECT_NEAR(result.reference_perplexity, n_vocab, 1e-3 * n_vocab);
  EXPECT_EQ(result.same_top(), 1.0);  // All are the likeliest of the reference.
}

TEST_F(Verify, NamesThePlaceWhereTheTwoPartAndTheWorst) {
  std::vector<std::byte> bytes = test::make_reference(model, tokens, k_window, k_n_chunks).bytes;
  // One row of the second window says something else: its fourth holds token 7 to be all but certain.
  test::ReferenceBytes other(k_window, model.info().n_vocab, 1);
  std::vector<float> logits(model.info().n_vocab, 0.0f);
  logits[7] = 14.0f;
  const std::size_t header = other.bytes.size();
  other.add_row(logits);
  std::copy(other.bytes.begin() + static_cast<std::ptrdiff_t>(header), other.bytes.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(k_rows + (k_n_scored + 3) * row_bytes()));
  Reference reference = reference_of(bytes);
  const VerifyResult result = verify(model, reference);
  EXPECT_EQ(result.n_same_top + 1, result.n_scored);
  ASSERT_TRUE(result.first_parting.has_value());
  for (const VerifyPlace& place : {*result.first_parting, result.worst}) {
    EXPECT_EQ(place.chunk, 1u);
    EXPECT_EQ(place.position, k_window / 2 + 3);
    EXPECT_EQ(place.reference_token, 7);
    EXPECT_NE(place.token, 7);
    EXPECT_GT(place.reference_probability, 0.9);
    EXPECT_LT(place.probability, 0.5);
    EXPECT_EQ(place.kl, result.max_kl);
  }
  EXPECT_GT(result.mean_kl, 0.01);
  Reference again = reference_of(bytes);
  EXPECT_FALSE(verify(model, again, {.max_chunks = 1}).first_parting);
}

TEST_F(Verify, TokensWithoutAProbabilityInTheFileCountForNeitherPerplexity) {
  const std::uint32_t n_vocab = model.info().n_vocab;
  test::ReferenceBytes sharp(k_window, n_vocab, 1);
  for (std::uint32_t i = 0; i < k_window; ++i) sharp.add_token(tokens[i]);
  // One row holds the token that follows to be certain, all others hold another one to be.
  for (std::uint32_t row = 0; row < k_n_scored; ++row) {
    std::vector<float> logits(n_vocab, 0.0f);
    const TokenId next = tokens[k_window / 2 + row + 1];
    logits[static_cast<std::size_t>(row == 5 ? next : next + 1)] = 40.0f;
    sharp.add_row(logits);
  }
  Reference reference = reference_of(sharp.bytes);
  const VerifyResult result = verify(model, reference);
  EXPECT_EQ(result.n_rated, 1u);
  EXPECT_NEAR(result.reference_perplexity, 1.0, 1e-6);
  EXPECT_GT(result.perplexity, 1.0);
}

TEST_F(Verify, AReferenceOfAnotherModelOrContextIsRefused) {
  const auto error_of = [&](std::uint32_t n_ctx, std::uint32_t n_vocab) {
    test::ReferenceBytes other(n_ctx, n_vocab, 1);
    for (std::uint32_t i = 0; i < n_ctx; ++i) other.add_token(0);
    for (std::uint32_t i = n_ctx / 2; i + 1 < n_ctx; ++i) other.add_row(std::vector<float>(n_vocab, 0.0f));
    Reference reference = reference_of(other.bytes);
    try {
      verify(model, reference);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string("none");
  };
  const std::uint32_t n_vocab = model.info().n_vocab;
  EXPECT_THAT(error_of(8, n_vocab - 1), HasSubstr("vocabulary of " + std::to_string(n_vocab - 1)));
  EXPECT_THAT(error_of(k_window + 1, n_vocab), HasSubstr("33 tokens, the model was opened for 32"));
  EXPECT_EQ(error_of(8, n_vocab), "none");
}

TEST_F(Verify, ADamagedRowEndsTheComparisonAndTheModelStaysUsable) {
  std::vector<std::byte> bytes = test::make_reference(model, tokens, k_window, 1).bytes;
  std::fill_n(bytes.begin() + 20 + k_window * sizeof(TokenId) + static_cast<std::ptrdiff_t>(row_bytes()), 8,
              std::byte{0xFF});
  Reference damaged = reference_of(bytes);
  try {
    verify(model, damaged);
    ADD_FAILURE() << "a damaged reference was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_file);
    EXPECT_THAT(error.what(), HasSubstr("behind token 17 of window 0"));
  }
  Reference whole = reference_of(test::make_reference(model, tokens, k_window, 1).bytes);
  EXPECT_EQ(verify(model, whole).same_top(), 1.0);
}

}  // namespace
}  // namespace sluice
