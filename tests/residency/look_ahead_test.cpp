// Goal: look-ahead reads what is worth its price, stops when its guesses are wrong and tries again; on
// simulated drives it is never clearly worse than reading nothing ahead or what fits the idle time, and close
// to the best fixed number of units.
#include "residency/look_ahead.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/random.hpp"

namespace sluice::residency {
namespace {

std::size_t units(std::vector<double> idle, double read_ns, std::vector<double> chances) {
  return look_ahead_units({idle, read_ns}, chances);
}

TEST(LookAhead, ReadsWhatFitsTheIdleTime) {
  EXPECT_EQ(units({1000}, 1000, {0.9}), 1u);
  EXPECT_EQ(units({3000}, 1000, {0.9, 0.9, 0.9, 0.9, 0.9}), 3u);
  EXPECT_EQ(units({1e12}, 1000, std::vector<double>(8, 0.9)), 8u);
}

TEST(LookAhead, AUnitThatOutlastsTheIdleTimeIsReadWhenItsChanceIsWorthTheWait) {
  // Worth 0.875 of a read (0.9 - 0.1 / 4), lost 1 - idle / read.
  EXPECT_EQ(units({130}, 1000, {0.9}), 1u);
  EXPECT_EQ(units({120}, 1000, {0.9}), 0u);
  EXPECT_EQ(units({120}, 1000, {0.95}), 1u);
  EXPECT_EQ(units({2130}, 1000, {0.9, 0.9, 0.9, 0.9}), 3u);
  EXPECT_EQ(units({2120}, 1000, {0.9, 0.9, 0.9, 0.9}), 2u);
  EXPECT_EQ(units({0}, 1000, {1.0}), 0u) << "a drive that is never idle gains nothing";
}

TEST(LookAhead, CountsHowIdleTimesSpread) {
  // The same mean: half of the layers leave no time at all.
  EXPECT_EQ(units({1000, 1000}, 1000, {0.55}), 1u);
  EXPECT_EQ(units({0, 2000}, 1000, {0.65}), 1u) << "worth 0.5625, lost 0.5";
  EXPECT_EQ(units({0, 2000}, 1000, {0.55}), 0u) << "worth 0.4375, lost 0.5";
}

TEST(LookAhead, ReadsNothingThatIsRarelyWanted) {
  EXPECT_EQ(units({1e9}, 1000, {0.15}), 0u);
  EXPECT_EQ(units({1e9}, 1000, {0.25}), 1u);
  EXPECT_EQ(units({1e9}, 1000, {0.9, 0.8, 0.15}), 2u);
}

TEST(LookAhead, ReadsNothingBeforeItKnowsTheDrive) {
  EXPECT_EQ(units({1000}, 0, {1.0}), 0u);
  EXPECT_EQ(units({}, 1000, {1.0}), 0u);
  LookAheadGate gate;
  const std::array<std::uint8_t, 1> ranks = {0};
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(gate.allowance(ranks, true), 0u);
}

constexpr std::array<std::uint8_t, 6> k_ranks = {0, 1, 2, 3, 4, 5};

TEST(LookAhead, StopsWhenGuessesFailAndComesBackWhenTheySucceed) {
  LookAheadGate gate;
  gate.observe_idle(4000, true);
  gate.observe_read(1, 1000);
  EXPECT_EQ(gate.allowance(k_ranks, true), 4u);
  for (int i = 0; i < 200; ++i)
    for (const std::uint8_t rank : k_ranks) gate.observe_guess(rank, false);
  EXPECT_EQ(gate.allowance(k_ranks, true), 0u);
  for (int i = 0; i < 200; ++i)
    for (const std::uint8_t rank : k_ranks) gate.observe_guess(rank, true);
  EXPECT_EQ(gate.allowance(k_ranks, true), 4u);
}

TEST(LookAhead, JudgesEachRankByItself) {
  LookAheadGate gate;
  gate.observe_idle(100'000, true);
  gate.observe_read(1, 1000);
  for (int i = 0; i < 200; ++i)
    for (const std::uint8_t rank : k_ranks) gate.observe_guess(rank, rank < 2);
  EXPECT_EQ(gate.allowance(k_ranks, true), 2u);
  EXPECT_EQ(gate.allowance(std::span(k_ranks).subspan(2), true), 0u);
  EXPECT_EQ(gate.allowance(std::span(k_ranks).subspan(1), true), 1u);
}

TEST(LookAhead, FollowsTheMachine) {
  LookAheadGate gate;
  gate.observe_idle(2000, true);
  gate.observe_read(2, 2000);
  EXPECT_EQ(gate.allowance(k_ranks, true), 2u);
  for (int i = 0; i < 500; ++i) gate.observe_read(1, 9000);
  EXPECT_EQ(gate.allowance(k_ranks, true), 0u) << "the drive became slower";
  gate.observe_read(0, 1'000'000);
  for (int i = 0; i < 500; ++i) gate.observe_idle(18'000, true);
  EXPECT_EQ(gate.allowance(k_ranks, true), 2u);
}

TEST(LookAhead, KeepsLayersThatReadNothingApart) {
  LookAheadGate gate;
  gate.observe_read(1, 1000);
  for (int i = 0; i < 100; ++i) {
    gate.observe_idle(100, true);
    gate.observe_idle(5000, false);
  }
  EXPECT_EQ(gate.allowance(k_ranks, true), 0u);
  EXPECT_EQ(gate.allowance(k_ranks, false), 5u);
}

/// Decoding of a mixture on a drive that reads one unit after another. Times in microseconds.
struct Machine {
  double read_us = 0;     ///< Of one unit.
  double hit_rate = 0;    ///< Chance that an expert is cached.
  double guess_rate = 0;  ///< Chance that the first of eight guesses is wanted; the eighth's is 0.3 less.
  double attention_us = 500, expert_us = 90;
};

/// How many of the missing guesses to read: the gate, or a fixed number, or the whole reads that fit the mean
/// idle time.
struct Decider {
  enum Kind { rule, fixed, whole_reads } kind = fixed;
  std::size_t n_fixed = 0;
  LookAheadGate gate = {};
  double mean_idle_us = 0;

  void observe_idle(double idle_us, bool after_reads) {
    gate.observe_idle(static_cast<std::uint64_t>(1e3 * idle_us), after_reads);
    mean_idle_us += (idle_us - mean_idle_us) / 64;
  }
  std::size_t choose(std::span<const std::uint8_t> ranks, bool after_reads, double read_us) {
    if (kind == rule) return gate.allowance(ranks, after_reads);
    return std::min(ranks.size(), kind == fixed ? n_fixed : static_cast<std::size_t>(mean_idle_us / read_us));
  }
};

struct Guess {
  std::uint8_t rank = 0;
  bool is_wanted = false;
};

/// What the next layer's router will want that is not cached: guessed or not.
struct NextLayer {
  std::vector<Guess> guesses;  ///< Those that are not cached.
  std::size_t n_other = 0;     ///< Wanted and not cached, but not guessed.
};

NextLayer draw_layer(const Machine& machine, base::SplitMix64& random) {
  constexpr std::uint8_t k_n_used = 8;
  NextLayer layer;
  std::size_t n_wanted = 0;
  for (std::uint8_t rank = 0; rank < k_n_used; ++rank) {
    const bool is_wanted = random.uniform() < machine.guess_rate - 0.3 * rank / 7;
    n_wanted += is_wanted;
    if (random.uniform() >= machine.hit_rate) layer.guesses.push_back({rank, is_wanted});
  }
  for (std::size_t i = n_wanted; i < k_n_used; ++i) layer.n_other += random.uniform() >= machine.hit_rate;
  return layer;
}

/// Mean time of a layer, less the first fifth of the layers.
double simulate(const Machine& machine, Decider decider) {
  constexpr std::size_t k_n_layers = 10'000, k_n_used = 8;
  base::SplitMix64 random(7);
  double now = 0, start = 0, drive_free = 0;
  NextLayer layer = draw_layer(machine, random);
  std::size_t n_issued = 0;  // Of layer.guesses, the first ones.
  for (std::size_t i = 0; i < k_n_layers; ++i) {
    if (i == k_n_layers / 5) start = now;
    std::size_t n_missing = layer.n_other, n_joined = 0;
    const double ahead_done = drive_free;
    for (std::size_t g = 0; g < layer.guesses.size(); ++g) {
      const Guess& guess = layer.guesses[g];
      decider.gate.observe_guess(guess.rank, guess.is_wanted);
      if (g < n_issued && guess.is_wanted && ahead_done > now) n_joined = 1;
      if (g >= n_issued && guess.is_wanted) ++n_missing;
    }
    // Reads that are under way go first, wanted or not.
    if (n_missing != 0) {
      drive_free = std::max(drive_free, now) + static_cast<double>(n_missing) * machine.read_us;
      decider.gate.observe_read(n_missing, static_cast<std::uint64_t>(1e3 * machine.read_us) * n_missing);
    }
    const std::size_t n_late = n_missing + n_joined;
    const double demand_end = n_missing != 0 ? drive_free : n_joined != 0 ? ahead_done : now;
    // What is in memory is computed first, the unit that arrives last at the end.
    const double all_us = machine.expert_us * static_cast<double>(k_n_used);
    const double experts_end = std::max(now + all_us, n_late == 0 ? now : demand_end + machine.expert_us);
    const double next = experts_end + machine.attention_us;
    layer = draw_layer(machine, random);
    std::vector<std::uint8_t> ranks;
    for (const Guess& guess : layer.guesses) ranks.push_back(guess.rank);
    n_issued = decider.choose(ranks, n_late != 0, machine.read_us);
    drive_free = std::max(drive_free, demand_end) + static_cast<double>(n_issued) * machine.read_us;
    decider.observe_idle(next - demand_end, n_late != 0);
    now = next;
  }
  return (now - start) / (k_n_layers * 4.0 / 5);
}

// A unit of 2.5 MiB on drives of 1, 2.5 and 5 GB/s, at hit rates of 50 to 97 %.
TEST(LookAhead, IsWorthItsPriceOnSimulatedDrives) {
  for (const double gigabytes : {1.0, 2.5, 5.0}) {
    for (const double hit_rate : {0.5, 0.7, 0.85, 0.93, 0.97}) {
      for (const double guess_rate : {0.5, 0.75, 0.95}) {
        const Machine machine{2621.44 / gigabytes, hit_rate, guess_rate};
        const double rule = simulate(machine, {Decider::rule});
        const double none = simulate(machine, {Decider::fixed, 0});
        const double floor = simulate(machine, {Decider::whole_reads});
        double best = none;
        for (std::size_t n = 1; n <= 8; ++n) best = std::min(best, simulate(machine, {Decider::fixed, n}));
        SCOPED_TRACE(testing::Message()
                     << gigabytes << " GB/s, hits " << hit_rate << ", guesses " << guess_rate << ": rule "
                     << rule << ", none " << none << ", floor " << floor << ", best fixed " << best);
        EXPECT_LT(rule, 1.01 * none);
        EXPECT_LT(rule, 1.01 * floor);
        EXPECT_LT(rule, 1.03 * best);
      }
    }
  }
}

TEST(Guesses, ChoosesWhatIsNotCachedBestFirstAndForgets) {
  Guesses guesses;
  const std::array<std::uint16_t, 5> experts = {7, 2, 9, 4, 1};
  const auto is_cached = [](std::uint32_t expert) { return expert == 2; };
  guesses.set(3, experts, 2);
  EXPECT_EQ(guesses.layer(), 3u);
  auto chosen = guesses.choose(is_cached, true);
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[0].expert, 7u);
  EXPECT_EQ(chosen[0].rank, 0u);
  EXPECT_EQ(chosen[1].expert, 9u);
  EXPECT_EQ(chosen[1].rank, 2u);
  guesses.set(3, experts, 9);
  EXPECT_EQ(guesses.choose(is_cached, true).size(), 4u);
  guesses.set(3, experts, std::nullopt);
  EXPECT_TRUE(guesses.choose(is_cached, true).empty()) << "the gate knows no drive yet";
  guesses.forget();
  EXPECT_TRUE(guesses.experts().empty());
  EXPECT_TRUE(guesses.choose(is_cached, true).empty());
}

TEST(Guesses, TheGateLearnsFromGuessesOfTheLayerThatWereNotCached) {
  const std::array<std::uint16_t, 2> experts = {7, 2};
  const auto is_cached = [](std::uint32_t expert) { return expert == 2; };
  const std::array<std::uint8_t, 1> first = {0}, second = {1};
  // Worth a read at a chance of 0.75, which is where all begin, and not at 0.
  const auto allowed_after = [&](std::uint32_t judged_layer, std::span<const std::uint8_t> ranks) {
    Guesses guesses;
    guesses.gate().observe_read(1, 1000);
    guesses.gate().observe_idle(1000, true);
    for (int i = 0; i < 300; ++i) {
      guesses.set(3, experts, 0);
      EXPECT_TRUE(guesses.choose(is_cached, true).empty());
      guesses.judge(judged_layer, [](std::uint32_t) { return false; });
      EXPECT_TRUE(guesses.experts().empty());
    }
    return guesses.gate().allowance(ranks, true);
  };
  EXPECT_EQ(allowed_after(3, first), 0u);
  EXPECT_EQ(allowed_after(3, second), 1u) << "it was cached: nothing was learnt";
  EXPECT_EQ(allowed_after(4, first), 1u) << "another layer's router spoke";
}

}  // namespace
}  // namespace sluice::residency
