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

TEST(DensePlan, NoBlocksIsNoChoice) {
  EXPECT_TRUE(choose_pinned_blocks({}, 1000).empty());
}

}  // namespace
}  // namespace sluice::residency
