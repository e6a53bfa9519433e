// Goal: as many blocks stay as fit, feed-forward blocks leave first, and what stays lies between what does
// not.
#include "residency/dense_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::residency {
namespace {

std::vector<DenseBlockFacts> layers(std::size_t n, std::uint64_t attention, std::uint64_t ffn) {
  std::vector<DenseBlockFacts> blocks;
  for (std::size_t i = 0; i < n; ++i) {
    blocks.push_back({Role::attention, attention});
    blocks.push_back({Role::dense_ffn, ffn});
  }
  return blocks;
}

std::uint64_t bytes_of(const std::vector<DenseBlockFacts>& blocks, const std::vector<bool>& pinned,
                       Role role) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    bytes += pinned[i] && blocks[i].role == role ? blocks[i].bytes : 0;
  return bytes;
}

TEST(DensePlan, NeverTakesMoreThanItMayAndLeavesLessThanABlock) {
  const auto blocks = layers(17, 10, 70);
  std::uint64_t last = 0;
  for (std::uint64_t bytes = 0; bytes <= 17 * 80 + 50; ++bytes) {
    const auto pinned = choose_pinned_blocks(blocks, bytes);
    const std::uint64_t taken =
        bytes_of(blocks, pinned, Role::attention) + bytes_of(blocks, pinned, Role::dense_ffn);
    EXPECT_LE(taken, bytes);
    EXPECT_GE(taken, last) << "more room keeps no less";
    last = taken;
    if (std::count(pinned.begin(), pinned.end(), false) != 0) {
      EXPECT_LT(bytes - taken, 70u);
    }
  }
  EXPECT_EQ(last, 17u * 80);
}

TEST(DensePlan, FeedForwardBlocksLeaveFirst) {
  const auto blocks = layers(8, 10, 70);
  const auto pinned = choose_pinned_blocks(blocks, 8 * 10 + 69);
  EXPECT_EQ(bytes_of(blocks, pinned, Role::attention), 80u);
  EXPECT_EQ(bytes_of(blocks, pinned, Role::dense_ffn), 0u);
}

TEST(DensePlan, StreamedAndPinnedBlocksTakeTurns) {
  const auto blocks = layers(32, 10, 70);
  const auto pinned = choose_pinned_blocks(blocks, 32 * 10 + 16 * 70);
  std::size_t run = 0, longest = 0;
  for (std::size_t i = 1; i < blocks.size(); i += 2) {
    run = pinned[i] ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  EXPECT_EQ(bytes_of(blocks, pinned, Role::dense_ffn), 16u * 70);
  EXPECT_EQ(longest, 1u);
}

TEST(DensePlan, BlocksOfDifferentSizesFillTheRoom) {
  std::vector<DenseBlockFacts> blocks = layers(4, 10, 70);
  blocks[7].bytes = 30;
  const auto pinned = choose_pinned_blocks(blocks, 4 * 10 + 65);
  EXPECT_TRUE(pinned[7]);
}

TEST(DensePlan, FeedForwardBlocksGiveWayFirstAndWhatStaysIsSpread) {
  for (const std::size_t n : {1u, 2u, 7u, 16u, 29u, 32u}) {
    const auto blocks = layers(n, 10, 70);
    const auto order = release_order(blocks);
    ASSERT_EQ(order.size(), 2 * n);
    std::vector<bool> gone(2 * n, false);
    for (std::size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(blocks[order[i]].role, i < n ? Role::dense_ffn : Role::attention);
      EXPECT_FALSE(gone[order[i]]) << "each once";
      gone[order[i]] = true;
      if (i >= n) continue;
      // Of i + 1 that left, cut at powers of two, no two lie more than twice as far apart as they must.
      std::size_t last = 1, longest = 0;
      for (std::size_t at = 1; at < 2 * n; at += 2) {
        if (!gone[at]) continue;
        longest = std::max(longest, (at - last) / 2);
        last = at;
      }
      longest = std::max(longest, (2 * n - last) / 2);
      EXPECT_LE(longest, 2 * (2 * n) / (i + 1) + 1) << n << " blocks, " << i + 1 << " gone";
    }
  }
}

TEST(DensePlan, NoMoreBlocksGiveWayThanMust) {
  const auto blocks = layers(9, 10, 70);
  const auto order = release_order(blocks);
  for (std::uint64_t bytes = 0; bytes <= 9 * 80 + 5; ++bytes) {
    const std::size_t n = count_released(blocks, order, bytes);
    std::uint64_t held = 9 * 80;
    for (std::size_t i = 0; i < n; ++i) held -= blocks[order[i]].bytes;
    EXPECT_LE(held, bytes);
    if (n != 0) {
      EXPECT_GT(held + blocks[order[n - 1]].bytes, bytes);
    }
  }
}

TEST(DensePlan, SharedExpertsAreKeptBeforeDenseBlocksAndGiveWayAfterThem) {
  std::vector<DenseBlockFacts> blocks;
  for (int layer = 0; layer < 4; ++layer) {
    blocks.push_back({Role::attention, 10});
    blocks.push_back({layer == 0 ? Role::dense_ffn : Role::shared_expert, 20});
  }
  const auto pinned = choose_pinned_blocks(blocks, 40 + 60);
  EXPECT_EQ(pinned, (std::vector<bool>{true, false, true, true, true, true, true, true}));
  const auto order = release_order(blocks);
  ASSERT_EQ(order.size(), blocks.size());
  EXPECT_EQ(order.front(), 1u);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(blocks[order[i]].role, Role::shared_expert);
}

TEST(DensePlan, NoBlocksIsNoChoice) {
  EXPECT_TRUE(choose_pinned_blocks({}, 1000).empty());
}

}  // namespace
}  // namespace sluice::residency
