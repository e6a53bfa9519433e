// Goal: slots give way before the memory is used up, come back when it is free, and keep still in between.
#include "residency/governor.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/units.hpp"

namespace sluice::residency {
namespace {

using base::k_gib;
using base::k_mib;

std::uint64_t slots(const PressureFacts& facts) {
  return governed_bytes(facts).slot_bytes;
}

TEST(Governor, KeepsThePlanWhileMemoryIsFree) {
  EXPECT_EQ(slots({4 * k_gib, 4 * k_gib, 6 * k_gib, k_gib}), 4 * k_gib);
  EXPECT_EQ(slots({4 * k_gib, 4 * k_gib, 6 * k_gib, 96 * k_mib}), 4 * k_gib);
}

TEST(Governor, GivesWayUntilTwiceTheMarkIsFree) {
  EXPECT_EQ(slots({4 * k_gib, 4 * k_gib, 6400 * k_mib, 60 * k_mib}), 4 * k_gib - (200 - 60) * k_mib);
  EXPECT_EQ(slots({4 * k_gib, 4 * k_gib, 6400 * k_mib, 0}), 4 * k_gib - 200 * k_mib);
  EXPECT_EQ(slots({50 * k_mib, 4 * k_gib, 6400 * k_mib, 0}), 0u);
  EXPECT_EQ(slots({4 * k_gib, 4 * k_gib, 1024 * k_gib, 0}), 4 * k_gib - 512 * k_mib)
      << "the mark has an upper limit";
}

TEST(Governor, TakesBackWhatIsFreeAgain) {
  EXPECT_EQ(slots({k_gib, 4 * k_gib, 6400 * k_mib, 450 * k_mib}), k_gib + 150 * k_mib);
  EXPECT_EQ(slots({k_gib, 4 * k_gib, 6400 * k_mib, 400 * k_mib}), k_gib);
  EXPECT_EQ(slots({k_gib, 4 * k_gib, 64 * k_gib, 60 * k_gib}), 4 * k_gib);
}

TEST(Governor, TheMarkRisesWhileOthersTakeMemory) {
  PressureFacts facts{0, 4 * k_gib, 6400 * k_mib, 228 * k_mib};
  EXPECT_EQ(mark_while_others_grow(facts), 100 * k_mib);
  facts.taken_bytes = 50 * k_mib;
  EXPECT_EQ(mark_while_others_grow(facts), 100 * k_mib);
  facts.taken_bytes = 70 * k_mib;
  EXPECT_EQ(mark_while_others_grow(facts), 140 * k_mib);
  facts.taken_bytes = 2 * k_gib;
  EXPECT_EQ(mark_while_others_grow(facts), 800 * k_mib) << "an eighth of the limit at most";
}

TEST(Governor, AFastFallOfFreeMemoryIsMetBeforeTheMark) {
  PressureFacts facts{4 * k_gib, 4 * k_gib, 6400 * k_mib, 150 * k_mib};
  facts.taken_bytes = 70 * k_mib;
  EXPECT_EQ(slots(facts), 4 * k_gib) << "what is free lasts longer than until the look after the next";
  facts.taken_bytes = 100 * k_mib;
  EXPECT_EQ(slots(facts), 4 * k_gib - 250 * k_mib);
  facts.taken_bytes = 2 * k_gib;
  EXPECT_EQ(slots(facts), 4 * k_gib - (1600 - 150) * k_mib) << "a quarter of the limit at most";
}

TEST(Governor, SeveralWhoTakeBackShareWhatIsFree) {
  // Each sees the same room at the same moment, again and again.
  for (const std::uint64_t n : {2u, 3u}) {
    std::vector<PressureFacts> all(n, {0, 4 * k_gib, 6400 * k_mib, 0});
    std::uint64_t used = 0;
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t free_bytes = 6400 * k_mib - used;
      for (PressureFacts& facts : all) {
        facts.free_bytes = free_bytes;
        facts.max_growth_bytes = 128 * k_mib;
        const std::uint64_t before = facts.slot_bytes;
        facts.slot_bytes = slots(facts);
        EXPECT_LE(facts.slot_bytes, before + 128 * k_mib);
        used = used + facts.slot_bytes - before;
      }
      ASSERT_LE(used, 6400 * k_mib);
    }
    EXPECT_LE(used, 6300 * k_mib) << "the mark stays free";
    EXPECT_GE(used, 5800 * k_mib) << "and no more than that";
    EXPECT_EQ(all.front().slot_bytes, all.back().slot_bytes);
  }
}

TEST(Governor, ABlockComesBackWhole) {
  PressureFacts facts{0, 0, 6400 * k_mib, 800 * k_mib, k_gib, 3 * k_gib};
  facts.max_growth_bytes = 128 * k_mib;
  facts.next_block_bytes = 300 * k_mib;
  EXPECT_EQ(governed_bytes(facts).block_bytes, k_gib + 300 * k_mib);
  facts.free_bytes = 550 * k_mib;
  EXPECT_EQ(governed_bytes(facts).block_bytes, k_gib + 250 * k_mib) << "which is too little for it";
}

TEST(Governor, SettlesInsteadOfFlapping) {
  // Somebody else takes 500 MiB of a group in which 300 MiB were free.
  PressureFacts facts{4 * k_gib, 4 * k_gib, 6400 * k_mib, 0};
  const std::uint64_t others = 6400 * k_mib - 4 * k_gib - 300 * k_mib + 500 * k_mib;
  int n_changes = 0;
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t used = facts.slot_bytes + others;
    facts.free_bytes = used < facts.limit_bytes ? facts.limit_bytes - used : 0;
    const std::uint64_t next = slots(facts);
    if (next != facts.slot_bytes) ++n_changes;
    facts.slot_bytes = next;
  }
  EXPECT_LE(n_changes, 3);
  EXPECT_GE(facts.limit_bytes - facts.slot_bytes - others, 100 * k_mib);
}

TEST(Governor, BlocksGiveWayOnlyWhenNoSlotIsLeftAndComeBackFirst) {
  PressureFacts facts{300 * k_mib, k_gib, 6400 * k_mib, 0, 2 * k_gib, 2 * k_gib};
  GovernedBytes governed = governed_bytes(facts);
  EXPECT_EQ(governed.slot_bytes, 100 * k_mib);
  EXPECT_EQ(governed.block_bytes, 2 * k_gib);
  facts.slot_bytes = 150 * k_mib;
  governed = governed_bytes(facts);
  EXPECT_EQ(governed.slot_bytes, 0u);
  EXPECT_EQ(governed.block_bytes, 2 * k_gib - 50 * k_mib);
  facts.block_bytes = 30 * k_mib;
  governed = governed_bytes(facts);
  EXPECT_EQ(governed.slot_bytes, 0u);
  EXPECT_EQ(governed.block_bytes, 0u);

  facts = {0, k_gib, 6400 * k_mib, 800 * k_mib, k_gib, 2 * k_gib};
  governed = governed_bytes(facts);
  EXPECT_EQ(governed.slot_bytes, 0u);
  EXPECT_EQ(governed.block_bytes, k_gib + 500 * k_mib);
  facts.block_bytes = 2 * k_gib - 100 * k_mib;
  governed = governed_bytes(facts);
  EXPECT_EQ(governed.slot_bytes, 400 * k_mib);
  EXPECT_EQ(governed.block_bytes, 2 * k_gib);
}

}  // namespace
}  // namespace sluice::residency
