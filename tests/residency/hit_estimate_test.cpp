// Goal: use counts become the hit rate that an lfru cache then has, and counts that say nothing are not
// believed. Method: counts whose answer is plain; and counts of the first part of traces, drawn here and
// recorded from real models, against a replay of the rest.
#include "residency/hit_estimate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.hpp"
#include "sluice/replay.hpp"
#include "support/test_data.hpp"

namespace sluice::residency {
namespace {

using Slots = std::vector<std::uint32_t>;

TEST(HitRateFromHeat, IsTheShareOfTheHottestExpertsOfEachLayer) {
  // So many tokens that neither chance nor the prior is worth a thousandth.
  const HeatCounts counts{1e6, {1e5, 7e5, 0, 2e5, 2.5e5, 2.5e5, 2.5e5, 2.5e5}};
  EXPECT_NEAR(*hit_rate_from_heat(counts, 4, Slots{1, 1}), (0.7 + 0.25) / 2, 1e-3);
  EXPECT_NEAR(*hit_rate_from_heat(counts, 4, Slots{2, 3}), (0.9 + 0.75) / 2, 1e-3);
  EXPECT_EQ(hit_rate_from_heat(counts, 4, Slots{0, 0}), 0.0);
  EXPECT_DOUBLE_EQ(*hit_rate_from_heat(counts, 4, Slots{4, 4}), 1.0);
  EXPECT_DOUBLE_EQ(*hit_rate_from_heat(counts, 4, Slots{9, 4}), 1.0) << "more slots than experts";
}

TEST(HitRateFromHeat, CountsOfFewTokensAreNotBelievedAndThoseOfSomeOnlyInPart) {
  const auto of = [](double n_tokens) {
    return hit_rate_from_heat({n_tokens, {n_tokens, 0, 0, 0}}, 4, Slots{1});
  };
  EXPECT_FALSE(of(10));
  EXPECT_FALSE(of(k_min_heat_tokens - 1));
  EXPECT_FALSE(hit_rate_from_heat({1000, {}}, 4, Slots{}));
  ASSERT_TRUE(of(k_min_heat_tokens));
  // Counts of n, 0, 0 and 0 have the variance n^2 / 4, where chance would make n 1/4 3/4.
  const double beyond_chance = 1 - 0.75 / 64;
  EXPECT_NEAR(*of(64), (64 * (beyond_chance + (1 - beyond_chance) / 4) + 8.0 / 4) / 72, 1e-12);
  EXPECT_GT(*of(10'000), 0.99);
}

TEST(HitRateFromHeat, WhatChanceMadeOfAnEvenUseIsNotExpectedAgain) {
  base::SplitMix64 random(5);
  for (const int n_tokens : {64, 400}) {
    HeatCounts counts{static_cast<double>(n_tokens), std::vector<double>(16 * 128, 0)};
    for (int i = 0; i < n_tokens * 8; ++i) {
      for (std::size_t layer = 0; layer < 16; ++layer) counts.uses[layer * 128 + random.below(128)] += 1;
    }
    // Of 64 tokens the most used quarter has half of all uses.
    EXPECT_NEAR(*hit_rate_from_heat(counts, 128, Slots(16, 32)), 0.25, 0.03) << n_tokens;
  }
}

TEST(HitRateFromHeat, StaysWithinBoundsWhateverAFileSays) {
  // A layer that was never used counts as used evenly; counts may exceed the tokens.
  EXPECT_DOUBLE_EQ(*hit_rate_from_heat({100, {0, 0, 0, 0}}, 4, Slots{1}), 0.25);
  base::SplitMix64 random(7);
  for (int i = 0; i < 200; ++i) {
    HeatCounts counts{1.0 + static_cast<double>(random.below(1'000'000'000)), {}};
    for (int expert = 0; expert < 3 * 8; ++expert)
      counts.uses.push_back(static_cast<double>(random.below(random.below(4) == 0 ? 1'000'000'001 : 3)));
    double last = 0;
    for (std::uint32_t n = 0; n <= 8; ++n) {
      const auto hit_rate = hit_rate_from_heat(counts, 8, Slots{n, n, n});
      ASSERT_EQ(hit_rate.has_value(), counts.n_tokens >= k_min_heat_tokens);
      if (!hit_rate) continue;
      EXPECT_GE(*hit_rate, last) << "another slot never hurts";
      EXPECT_GE(*hit_rate, n / 8.0 - 1e-12) << "nor is even use ever better";
      EXPECT_LE(*hit_rate, 1);
      last = *hit_rate;
    }
  }
}

/// What the first tokens of a trace let expect of a cache of a share of the experts, and what replaying them
/// all gives for the others.
struct Compared {
  double expected = 0, replayed = 0;
};
Compared compare(const RoutingTrace& trace, std::uint32_t n_counted, double share) {
  HeatCounts counts{static_cast<double>(n_counted), {}};
  counts.uses.resize(std::size_t{trace.n_layers} * trace.n_experts, 0);
  for (std::size_t i = 0; i < std::size_t{n_counted} * trace.n_layers * trace.n_used; ++i) {
    const std::size_t layer = i / trace.n_used % trace.n_layers;
    if (trace.experts[i] != RoutingTrace::k_not_recorded)
      counts.uses[layer * trace.n_experts + trace.experts[i]] += 1;
  }
  const std::uint64_t n_slots = slots_for_share(trace, share);
  Slots slots(trace.n_layers, static_cast<std::uint32_t>(n_slots / trace.n_layers));
  for (std::size_t i = 0; i < n_slots % trace.n_layers; ++i) ++slots[i];
  return {hit_rate_from_heat(counts, trace.n_experts, slots).value_or(-1),
          replay_trace(trace, ReplayPolicy::lfru, n_slots, n_counted).hit_rate()};
}

/// Tokens that are independent of one another: expert e of 64 is the more likely among the 8 of a token the
/// smaller e is, with weights that fall like (e + 1)^-2X.
RoutingTrace independent_trace(double locality, std::uint32_t n_tokens) {
  RoutingTrace trace;
  trace.n_layers = 2;
  trace.n_experts = 64;
  trace.n_used = 8;
  trace.prompt_chunk = 1;
  trace.is_prompt.assign(n_tokens, false);
  base::SplitMix64 random(11);
  for (std::uint32_t i = 0; i < n_tokens * trace.n_layers; ++i) {
    // The largest of weights with Gumbel noise are a draw without replacement.
    std::vector<std::pair<double, std::uint16_t>> keys;
    for (std::uint16_t expert = 0; expert < trace.n_experts; ++expert) {
      const double noise = -std::log(-std::log(std::max(random.uniform(), 1e-300)));
      keys.emplace_back(noise - 2 * locality * std::log(expert + 1.0), expert);
    }
    std::sort(keys.rbegin(), keys.rend());
    for (std::uint32_t rank = 0; rank < trace.n_used; ++rank) trace.experts.push_back(keys[rank].second);
  }
  return trace;
}

TEST(HitRateFromHeat, OfIndependentTokensIsAboveTheCachesByLessThanTenPoints) {
  for (const double locality : {0.0, 0.25, 0.5, 0.75}) {
    const RoutingTrace trace = independent_trace(locality, 1200);
    for (const double share : {0.125, 0.25, 0.5, 0.75}) {
      const Compared found = compare(trace, 600, share);
      EXPECT_LT(found.expected, found.replayed + 0.10) << locality << " " << share;
      EXPECT_GT(found.expected, found.replayed - 0.02) << locality << " " << share;
    }
  }
}

/// Of real texts, from the first half of one, it is low where slots are few.
void expect_real(const RoutingTrace& trace) {
  for (const double share : {0.0625, 0.125, 0.25, 0.375, 0.5}) {
    const Compared found = compare(trace, trace.n_tokens() / 2, share);
    EXPECT_LT(found.expected, found.replayed + 0.01) << share;
    EXPECT_GT(found.expected, found.replayed - 0.15) << share;
    EXPECT_GT(found.expected, share + 0.1) << "knows more than an even use";
  }
}

TEST(HitRateFromHeat, OfARecordedTraceOfQwen3) {
  SLUICE_NEEDS_DATA(path, "traces/qwen3_30b_a3b_k6.route.csv");
  expect_real(read_trace(path));
}

TEST(HitRateFromHeat, OfARecordedTraceOfOlmoe) {
  SLUICE_NEEDS_DATA(path, "traces/olmoe_1b7b_299tok.jsonl");
  expect_real(read_trace(path));
}

}  // namespace
}  // namespace sluice::residency
