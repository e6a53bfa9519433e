// Goal: the orders in which experts leave. Method: hand-made histories whose outcome is plain.
#include "residency/cache_policy.hpp"

#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace sluice::residency
