#include "sluice/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sluice/error.hpp"

namespace {
std::size_t n_allocations = 0;
}  // namespace

// Counts allocations of the whole test program, for the claim that sampling makes none. Not inlined, or GCC
// 12 sees malloc behind one of the pair only and warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++n_allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

namespace sluice {
namespace {

constexpr float k_infinity = std::numeric_limits<float>::infinity();
constexpr float k_nan = std::numeric_limits<float>::quiet_NaN();

/// Everything off: plain sampling from the softmax at temperature 1.
SamplerOptions plain(std::uint64_t seed = 1) {
  SamplerOptions options;
  options.temperature = 1.0f;
  options.top_k = 0;
  options.top_p = 1.0f;
  options.min_p = 0.0f;
  options.seed = seed;
  return options;
}

SamplerOptions greedy() {
  SamplerOptions options = plain();
  options.temperature = 0.0f;
  return options;
}

std::vector<float> random_logits(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> logits(n);
  // Steps of 1/8 make ties frequent.
  for (float& logit : logits) logit = (static_cast<float>(random() % 160) - 100.0f) / 8.0f;
  return logits;
}

std::set<TokenId> support(const SamplerOptions& options, const std::vector<float>& logits, int n_draws) {
  Sampler sampler(options);
  std::set<TokenId> seen;
  for (int i = 0; i < n_draws; ++i) seen.insert(sampler.sample(logits));
  return seen;
}

/// What the documented order of filters leaves, by the obvious method: sort everything, then cut.
std::vector<TokenId> allowed(const SamplerOptions& options, const std::vector<float>& logits) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  if (options.top_k != 0 && options.top_k < ids.size()) ids.resize(options.top_k);
  const auto p = [&](TokenId id) {
    return std::exp(static_cast<double>(logit(id)) - static_cast<double>(logit(ids[0])));
  };
  if (options.top_p < 1.0f) {
    double total = 0;
    for (const TokenId id : ids) total += p(id);
    double sum = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      sum += p(ids[i]);
      if (sum >= static_cast<double>(options.top_p) * total) ids.resize(i + 1);
    }
  }
  std::erase_if(ids, [&](TokenId id) { return p(id) < static_cast<double>(options.min_p); });
  return ids;
}

void expect_refused(const SamplerOptions& options, const std::string& name) {
  try {
    Sampler sampler(options);
    ADD_FAILURE() << "accepted a bad " << name;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
  }
}

TEST(Sampler, TemperatureZeroTakesTheLargestLogitAndTiesGoToTheLowerId) {
  Sampler sampler(greedy());
  EXPECT_EQ(sampler.sample(std::vector<float>{-3, 2, 5, 4}), 2);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 7, 7, 7, 0}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-k_infinity, -1e30f}), 1);
}

TEST(Sampler, DrawsFollowThePublishedSplitMixSequence) {
  // The first outputs for this seed in Vigna's reference are 6457827717110365317, 3203168211198807973,
  // 9817491932198370423, 4593380528125082431, 16408922859458223821; over ten equal tokens the choice is the
  // first decimal digit of output / 2^64.
  Sampler sampler(plain(1234567));
  const std::vector<float> equal(10, 0.5f);
  for (const TokenId expected : {3, 1, 5, 2, 8}) EXPECT_EQ(sampler.sample(equal), expected);
}

TEST(Sampler, SameSeedGivesTheSameTokensAndAnotherSeedOthers) {
  SamplerOptions options;
  const std::vector<float> logits = random_logits(500, 3);
  const auto tokens = [&](std::uint64_t seed) {
    options.seed = seed;
    options.temperature = 1.5f;
    Sampler sampler(options);
    std::vector<TokenId> drawn;
    for (int i = 0; i < 64; ++i) drawn.push_back(sampler.sample(logits));
    return drawn;
  };
  EXPECT_EQ(tokens(7), tokens(7));
  EXPECT_NE(tokens(7), tokens(8));
}

TEST(Sampler, SeedZeroIsReplacedByOneThatRepeatsTheRun) {
  SamplerOptions options = plain(0);
  const std::vector<float> logits(1000, 0.0f);
  Sampler first(options);
  EXPECT_NE(first.seed(), 0u);
  options.seed = first.seed();
  Sampler second(options);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(first.sample(logits), second.sample(logits));
}

TEST(Sampler, FrequenciesFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits{1.0f, 0.0f, -1.0f, 2.0f};
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    SamplerOptions options = plain(99);
    options.temperature = temperature;
    Sampler sampler(options);
    constexpr int k_draws = 40000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < k_draws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(logits))];
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit / temperature));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double p = std::exp(static_cast<double>(logits[i] / temperature)) / total;
      // Five standard deviations of a binomial count.
      EXPECT_NEAR(counts[i], k_draws * p, 5 * std::sqrt(k_draws * p * (1 - p)))
          << "token " << i << " at " << temperature;
    }
  }
}

TEST(Sampler, TopKKeepsTheKLargestAndTiesGoToTheLowerIds) {
  SamplerOptions options = plain();
  options.top_k = 3;
  options.temperature = 100.0f;
  EXPECT_EQ(support(options, {5, 1, 5, 5, 5, 2}, 500), (std::set<TokenId>{0, 2, 3}));
  options.top_k = 1;
  EXPECT_EQ(support(options, {1, 9, 9}, 50), (std::set<TokenId>{1}));
  options.top_k = 4'000'000'000u;
  EXPECT_EQ(support(options, {0, 0, 0}, 200), (std::set<TokenId>{0, 1, 2}));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesTheShare) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const std::vector<float> logits{std::log(0.3f), std::log(0.05f), std::log(0.5f), std::log(0.15f)};
  SamplerOptions options = plain();
  options.top_p = 0.79f;
  EXPECT_EQ(support(options, logits, 500), (std::set<TokenId>{0, 2}));
  options.top_p = 0.81f;
  EXPECT_EQ(support(options, logits, 500), (std::set<TokenId>{0, 2, 3}));
  options.top_p = 0.0f;
  EXPECT_EQ(support(options, logits, 50), (std::set<TokenId>{2}));
}

TEST(Sampler, TopPIsTakenAtTemperatureOne) {
  // At temperature 10 the shares are nearly equal, and 0.79 of them would need all four tokens.
  const std::vector<float> logits{std::log(0.3f), std::log(0.05f), std::log(0.5f), std::log(0.15f)};
  SamplerOptions options = plain();
  options.top_p = 0.79f;
  options.temperature = 10.0f;
  EXPECT_EQ(support(options, logits, 500), (std::set<TokenId>{0, 2}));
}

TEST(Sampler, MinPIsAShareOfTheLikeliestToken) {
  const std::vector<float> logits{std::log(0.3f), std::log(0.05f), std::log(0.5f), std::log(0.15f)};
  SamplerOptions options = plain();
  options.min_p = 0.29f;  // of 0.5: 0.145
  EXPECT_EQ(support(options, logits, 500), (std::set<TokenId>{0, 2, 3}));
  options.min_p = 1.0f;
  EXPECT_EQ(support(options, logits, 50), (std::set<TokenId>{2}));
}

TEST(Sampler, FiltersAgreeWithSortingTheWholeVocabulary) {
  for (std::uint32_t round = 0; round < 30; ++round) {
    const std::size_t n = 1 + round * 37;
    const std::vector<float> logits = random_logits(n, round);
    SamplerOptions options = plain(round + 1);
    options.top_k = round % 3 == 0 ? 0 : 1 + (round * 7) % 400;
    // 0.6180339887 and the like fall far from any sum of shares, so rounding cannot decide membership.
    options.top_p = round % 4 == 0 ? 1.0f : 0.6180339887f;
    options.min_p = round % 5 == 0 ? 0.0317f : 0.0f;
    options.temperature = 1000.0f;  // nearly uniform over what is left
    const std::vector<TokenId> expected = allowed(options, logits);
    const std::set<TokenId> expected_set(expected.begin(), expected.end());
    const std::set<TokenId> seen = support(options, logits, 2000);
    for (const TokenId token : seen)
      EXPECT_TRUE(expected_set.contains(token)) << "round " << round << ", token " << token;
    if (expected_set.size() <= 100) {
      // A given token is missed in 2000 draws with probability at most (1 - 0.97/100)^2000 < 4e-9.
      EXPECT_EQ(seen, expected_set) << "round " << round;
    }
  }
}

TEST(Sampler, TokensBeyondTopKDoNotCountForTopP) {
  // The two kept tokens share 1/2 each among themselves; of the whole vocabulary they would be 1/4.
  SamplerOptions options = plain();
  options.top_k = 2;
  options.top_p = 0.5f;
  EXPECT_EQ(support(options, {1, 1, 1, 1}, 200), (std::set<TokenId>{0}));
  options.top_p = 0.51f;
  EXPECT_EQ(support(options, {1, 1, 1, 1}, 200), (std::set<TokenId>{0, 1}));
}

TEST(Sampler, RepeatPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SamplerOptions options = greedy();
  options.repeat_penalty = 2.0f;
  Sampler sampler(options);
  sampler.accept(0);
  EXPECT_EQ(sampler.sample(std::vector<float>{3.0f, 1.6f, 1.4f}), 1);  // 3 / 2 = 1.5
  EXPECT_EQ(sampler.sample(std::vector<float>{3.4f, 1.6f, 1.4f}), 0);  // 1.7
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.0f, -1.9f}), 1);      // -2
  EXPECT_EQ(sampler.sample(std::vector<float>{-0.9f, -1.9f}), 0);      // -1.8
}

TEST(Sampler, RepeatPenaltyCountsATokenOnceAndForgetsItOutsideTheWindow) {
  SamplerOptions options = greedy();
  options.repeat_penalty = 2.0f;
  options.repeat_window = 3;
  Sampler sampler(options);
  const std::vector<float> logits{4.0f, 1.5f, 0.1f, 0.1f, 0.1f};
  for (int i = 0; i < 3; ++i) sampler.accept(0);
  EXPECT_EQ(sampler.sample(logits), 0);  // 4 / 2, not 4 / 8
  sampler.accept(2);
  sampler.accept(3);
  EXPECT_EQ(sampler.sample(std::vector<float>{2.0f, 1.5f, 0.1f, 0.1f, 0.1f}),
            1);  // one 0 is still in the window
  sampler.accept(4);
  EXPECT_EQ(sampler.sample(std::vector<float>{2.0f, 1.5f, 0.1f, 0.1f, 0.1f}), 0);
}

TEST(Sampler, RepeatPenaltyIgnoresForeignTokensAndSurvivesExtremes) {
  SamplerOptions options = greedy();
  options.repeat_penalty = 1e-30f;
  Sampler sampler(options);
  for (const TokenId token : {-5, 2, 70000}) sampler.accept(token);
  EXPECT_EQ(sampler.sample(std::vector<float>{1.0f, 2.0f, 1e20f}), 2);  // would be infinite
  options.repeat_window = 0;
  Sampler off(options);
  off.accept(0);
  EXPECT_EQ(off.sample(std::vector<float>{1.0f, 2.0f}), 1);
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  for (const std::uint32_t top_k : {0u, 2u, 3u}) {
    SamplerOptions options = plain();
    options.top_k = top_k;
    options.temperature = 50.0f;
    EXPECT_EQ(support(options, {-k_infinity, 0.0f, -k_infinity, 1.0f}, 300), (std::set<TokenId>{1, 3}));
  }
}

TEST(Sampler, DamagedLogitsAreAnErrorThatNamesTheToken) {
  for (SamplerOptions options : {greedy(), plain(), SamplerOptions{}}) {
    options.seed = 1;
    Sampler sampler(options);
    for (const std::vector<float>& logits :
         {std::vector<float>{0, 1, k_nan, 2}, std::vector<float>{0, 1, k_infinity, 2}}) {
      try {
        sampler.sample(logits);
        ADD_FAILURE() << "drew a token from damaged logits";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::internal);
        EXPECT_NE(std::string(error.what()).find("token 2"), std::string::npos) << error.what();
      }
    }
    EXPECT_THROW(sampler.sample(std::vector<float>{-k_infinity, -k_infinity}), Error);
    EXPECT_THROW(sampler.sample({}), Error);
  }
}

TEST(Sampler, TinyTemperatureIsGreedyInEffect) {
  SamplerOptions options = plain();
  options.temperature = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(support(options, {1.0f, 1.001f, 0.9f}, 100), (std::set<TokenId>{1}));
}

TEST(Sampler, OptionsOutOfRangeAreRefusedByName) {
  const auto with = [](auto change) {
    SamplerOptions options;
    change(options);
    return options;
  };
  for (const float bad : {-0.1f, k_nan, k_infinity}) {
    expect_refused(with([&](SamplerOptions& o) { o.temperature = bad; }), "temperature");
    expect_refused(with([&](SamplerOptions& o) { o.top_p = bad; }), "top_p");
    expect_refused(with([&](SamplerOptions& o) { o.min_p = bad; }), "min_p");
    expect_refused(with([&](SamplerOptions& o) { o.repeat_penalty = bad; }), "repeat_penalty");
  }
  expect_refused(with([](SamplerOptions& o) { o.top_p = 1.01f; }), "top_p");
  expect_refused(with([](SamplerOptions& o) { o.min_p = 1.01f; }), "min_p");
  expect_refused(with([](SamplerOptions& o) { o.repeat_penalty = 0.0f; }), "repeat_penalty");
  expect_refused(with([](SamplerOptions& o) { o.repeat_window = (1u << 20) + 1; }), "repeat_window");
}

TEST(Sampler, AllocatesNothingAfterTheWindowIsFull) {
  SamplerOptions options;
  options.seed = 5;
  options.repeat_penalty = 1.1f;
  for (const std::uint32_t top_k : {40u, 0u}) {
    options.top_k = top_k;
    Sampler sampler(options);
    const std::vector<float> logits = random_logits(20000, 1);
    const auto turn = [&](TokenId i) {
      sampler.sample(logits);
      sampler.accept((i * 7919) % 20000);
    };
    for (TokenId i = 0; i < 100; ++i) turn(i);
    const std::size_t before = n_allocations;
    for (TokenId i = 100; i < 200; ++i) turn(i);
    EXPECT_EQ(n_allocations, before) << "top_k " << top_k;
  }
}

}  // namespace
}  // namespace sluice
