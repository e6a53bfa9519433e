// Goal: look-ahead reads what fits the idle time of the drive, stops when its guesses are wrong and tries
// again.
#include "residency/look_ahead.hpp"

#include <gtest/gtest.h>

namespace sluice::residency {
namespace {

TEST(LookAhead, ReadsWhatFitsTheIdleTime) {
  EXPECT_EQ(look_ahead_units({999, 1000, 0, 0}), 0u);
  EXPECT_EQ(look_ahead_units({1000, 1000, 0, 0}), 1u);
  EXPECT_EQ(look_ahead_units({3900, 1000, 0, 0}), 3u);
  EXPECT_EQ(look_ahead_units({1e12, 1000, 0, 0}), 8u);
}

TEST(LookAhead, ReadsNothingBeforeItKnowsTheDrive) {
  EXPECT_EQ(look_ahead_units({1000, 0, 0, 0}), 0u);
  EXPECT_EQ(look_ahead_units({0, 1000, 0, 0}), 0u);
  LookAheadGate gate;
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(gate.allowance(), 0u);
}

TEST(LookAhead, ReadsNothingWhenMostOfItIsWasted) {
  EXPECT_EQ(look_ahead_units({5000, 1000, 100, 50}), 5u);
  EXPECT_EQ(look_ahead_units({5000, 1000, 100, 49}), 0u);
  EXPECT_EQ(look_ahead_units({5000, 1000, 31, 0}), 5u) << "too few to judge";
}

TEST(LookAhead, StopsWhenGuessesFailAndComesBackWhenTheySucceed) {
  LookAheadGate gate;
  gate.observe_idle(4000);
  gate.observe_read(1, 1000);
  EXPECT_EQ(gate.allowance(), 4u);
  for (int i = 0; i < 100; ++i) gate.observe_end(false);
  std::size_t n_tried = 0;
  for (int i = 0; i < 2048; ++i) n_tried += gate.allowance();
  EXPECT_EQ(n_tried, 4u) << "one attempt in 512";
  for (int i = 0; i < 200; ++i) gate.observe_end(true);
  EXPECT_EQ(gate.allowance(), 4u);
}

TEST(LookAhead, FollowsTheMachine) {
  LookAheadGate gate;
  gate.observe_idle(2000);
  gate.observe_read(2, 2000);
  EXPECT_EQ(gate.allowance(), 2u);
  for (int i = 0; i < 500; ++i) gate.observe_read(1, 4000);
  EXPECT_EQ(gate.allowance(), 0u) << "the drive became slower";
  gate.observe_read(0, 1'000'000);
  for (int i = 0; i < 500; ++i) gate.observe_idle(9000);
  EXPECT_EQ(gate.allowance(), 2u);
}

}  // namespace
}  // namespace sluice::residency
