// Goal: the orders in which experts leave. Method: hand-made histories whose outcome is plain.
#include "residency/cache_policy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sluice::residency {
namespace {

TEST(LayerPolicy, LruKeepsTheLastUsed) {
  LayerPolicy policy(CachePolicy::lru, 3);
  for (int i = 0; i < 10; ++i) policy.touch(0, 1);
  policy.touch(1, 2);
  EXPECT_GT(policy.score(1, 3), policy.score(0, 3));
}

TEST(LayerPolicy, LfruKeepsTheOftenUsedOverTheJustUsed) {
  LayerPolicy policy(CachePolicy::lfru, 3);
  for (std::uint64_t now = 1; now <= 10; ++now) policy.touch(0, now);
  policy.touch(1, 11);
  EXPECT_GT(policy.score(0, 12), policy.score(1, 12));
}

TEST(LayerPolicy, LfruForgetsWithItsHalfLife) {
  LayerPolicy policy(CachePolicy::lfru, 2);
  policy.touch(0, 0, 8);
  // After one half-life a count of 8 is worth 4; the age divides both alike.
  const std::uint64_t later = 32;
  EXPECT_NEAR(policy.score(0, later), 4.0 / (1.0 + 32.0), 1e-6);
  policy.touch(0, later);
  EXPECT_NEAR(policy.score(0, later), 5.0, 1e-6);
}

TEST(LayerPolicy, NeverUsedGoesFirst) {
  for (const CachePolicy kind : {CachePolicy::lru, CachePolicy::lfru}) {
    LayerPolicy policy(kind, 2);
    policy.touch(0, 1);
    EXPECT_GT(policy.score(0, 1'000'000'000), policy.score(1, 1'000'000'000));
  }
}

TEST(LayerPolicy, CountsRowsOfAPass) {
  LayerPolicy policy(CachePolicy::lfru, 2);
  policy.touch(0, 5, 20);
  policy.touch(1, 5, 3);
  EXPECT_GT(policy.score(0, 6), policy.score(1, 6));
}

TEST(LayerPolicy, ASeedScoresAsUseAtThatRateUntilTimeZero) {
  LayerPolicy used(CachePolicy::lfru, 1), seeded(CachePolicy::lfru, 2);
  // A quarter of the tokens: once in four, long enough that the start is forgotten (2^-31 of it is left).
  constexpr std::uint64_t k_start = 1000;
  for (std::uint64_t now = 4; now <= k_start; now += 4) used.touch(0, now);
  seeded.seed(0, 0.25);
  // Between two uses the true count wavers around the mean by half a use in 46 / 4 of them, under 5 %.
  EXPECT_NEAR(seeded.score(0, 10), used.score(0, k_start + 10), 0.05 * used.score(0, k_start + 10));
  EXPECT_GT(seeded.score(0, 10), seeded.score(1, 10)) << "an unseeded expert goes first";
}

TEST(LayerPolicy, SeedsAreOutweighedByUsesAndAreNotCountedAsUses) {
  LayerPolicy policy(CachePolicy::lfru, 2);
  policy.seed(0, 1.0);
  policy.touch(1, 100);
  policy.touch(1, 101);
  EXPECT_GT(policy.score(1, 102), policy.score(0, 102));
  EXPECT_EQ(policy.n_uses(0), 0u);
  EXPECT_EQ(policy.n_uses(1), 2u);
  const double before = policy.score(1, 103);
  policy.seed(1, 1.0);
  EXPECT_EQ(policy.score(1, 103), before) << "a seed after the first use is too late";
}

TEST(LayerPolicy, AFullPassAdmitsOnlyWhatScoresHigher) {
  EXPECT_EQ(pass_admission(Admission::always, 3, 4), Admission::always);
  EXPECT_EQ(pass_admission(Admission::always, 4, 4), Admission::if_better);
  EXPECT_EQ(pass_admission(Admission::always, 4, 0), Admission::if_better);
  EXPECT_EQ(pass_admission(Admission::if_better, 1, 4), Admission::if_better);
  EXPECT_TRUE(may_displace(Admission::always, 2.0, 1.0));
  EXPECT_FALSE(may_displace(Admission::if_better, 1.0, 1.0));
  EXPECT_TRUE(may_displace(Admission::if_better, 1.0, 1.5));
}

TEST(LayerPolicy, OrdersByScoreAndKeepsTheOrderOfEquals) {
  LayerPolicy policy(CachePolicy::lfru, 5);
  for (std::uint32_t expert = 0; expert < 5; ++expert)
    policy.touch(expert, 1, expert == 3 ? 7 : expert == 1 ? 2 : 1);
  std::vector<std::uint32_t> experts{4, 0, 1, 2, 3};
  policy.order_by_score(experts, 1);
  EXPECT_EQ(experts, (std::vector<std::uint32_t>{3, 1, 4, 0, 2}));
}

}  // namespace
}  // namespace sluice::residency
