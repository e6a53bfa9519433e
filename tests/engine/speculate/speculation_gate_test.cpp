// Goal: the gate never costs more than 2 % of a long run, and where speculation pays it finds a depth close
// to the best. Method: simulated decoding with known costs and acceptance, all random draws from seeds.
#include "engine/speculate/speculation_gate.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

#include "base/random.hpp"

namespace sluice::engine {
namespace {

constexpr std::uint32_t k_depth = 16;
constexpr double k_ms = 1e6;

/// A machine and a text: what passes cost and which guesses are right.
struct World {
  std::function<double(std::uint32_t n_rows)> step_ns;  ///< Of passes with so many rows.
  /// Whether the guess at a position is right, the ones before it being right; by time in tokens.
  std::function<double(std::uint64_t token, std::uint32_t position)> acceptance;
  double guess_ns = 0;
  double noise = 0.1;    ///< Times vary by up to this share.
  double stall = 0.002;  ///< Share of passes that take ten times as long.
  GuessSource source = GuessSource::lookup_3;
  double offered = 1.0;  ///< Share of passes in which the source has a guess.
  /// What passes cost from this token on.
  std::uint64_t changes_at = ~std::uint64_t{0};
  std::function<double(std::uint32_t n_rows)> later_step_ns{};
};

struct Outcome {
  double plain_ns = 0, spent_ns = 0;
  std::uint64_t n_guesses = 0;
  double speedup() const { return plain_ns / spent_ns; }
};

/// Decodes n_tokens. Plain decoding would have met the same noise, so its time is the mean cost of one row.
Outcome simulate(const World& world, std::uint64_t n_tokens, std::uint64_t seed) {
  base::SplitMix64 random(seed);
  SpeculationGate gate(k_depth);
  Outcome outcome;
  const double mean_stall = 1.0 + 9.0 * world.stall;
  std::uint64_t token = 0;
  while (token < n_tokens) {
    const auto& step_ns = token < world.changes_at ? world.step_ns : world.later_step_ns;
    const bool stalls = random.uniform() < world.stall;
    const double factor = (1.0 + world.noise * (2.0 * random.uniform() - 1.0)) * (stalls ? 10.0 : 1.0);
    const GuessOffer offer{world.source, k_depth, 0, world.guess_ns};
    const bool offered = random.uniform() < world.offered;
    const auto choice = gate.choose(offered ? std::span(&offer, 1) : std::span<const GuessOffer>());
    std::uint32_t n_right = 0;
    if (choice.n == 0) {
      const double ns = step_ns(1) * factor;
      gate.note_plain(ns);
      outcome.spent_ns += ns;
    } else {
      while (n_right < choice.n && random.uniform() < world.acceptance(token, n_right)) ++n_right;
      const double ns = step_ns(choice.n + 1) * factor, guessing = choice.n * world.guess_ns;
      gate.note_round(world.source, choice.n, n_right, ns, guessing);
      outcome.spent_ns += ns + guessing;
      outcome.n_guesses += choice.n;
    }
    token += n_right + 1;
    outcome.plain_ns += (n_right + 1) * step_ns(1) * mean_stall;
  }
  return outcome;
}

/// What a gate that knows everything would reach.
double best_speedup(const World& world) {
  double best = 1.0;
  for (std::uint32_t n = 1; n <= k_depth; ++n) {
    double tokens = 1, right = 1;
    for (std::uint32_t i = 0; i < n; ++i) tokens += right *= world.acceptance(0, i);
    best = std::max(best, tokens * world.step_ns(1) / (world.step_ns(n + 1) + n * world.guess_ns));
  }
  return best;
}

std::function<double(std::uint64_t, std::uint32_t)> constant(double share) {
  return [share](std::uint64_t, std::uint32_t) { return share; };
}

struct Cost {
  const char* name;
  std::function<double(std::uint32_t)> step_ns;
};

/// Dense and streamed; a resident mixture of experts; one that is streamed; computing all the way; the drive
/// until computing takes longer.
const std::array<Cost, 5> k_costs = {{
    {"flat", [](std::uint32_t) { return 1000 * k_ms; }},
    {"gentle", [](std::uint32_t n) { return (10 + 1.5 * n) * k_ms; }},
    {"experts", [](std::uint32_t n) { return 300 * std::pow(n, 0.8) * k_ms; }},
    {"linear", [](std::uint32_t n) { return 5.0 * n * k_ms; }},
    {"kinked", [](std::uint32_t n) { return std::max(100.0, 30.0 * n) * k_ms; }},
}};

TEST(SpeculationGate, ALongRunNeverLosesMoreThanTwoPercent) {
  for (const Cost& cost : k_costs) {
    for (const double share : {0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0}) {
      for (const double guess : {0.0, 0.1, 0.6}) {
        World world{cost.step_ns, constant(share)};
        world.guess_ns = guess * cost.step_ns(1);
        world.source = guess == 0 ? GuessSource::lookup_3 : GuessSource::draft;
        world.stall = 0;
        const Outcome outcome = simulate(world, 4000, 17);
        EXPECT_GE(outcome.speedup(), 0.98) << cost.name << ", accepted " << share << ", guess " << guess;
      }
    }
  }
}

TEST(SpeculationGate, StallsOfTheMachineDoNotMisleadIt) {
  for (const Cost& cost : k_costs) {
    for (const double share : {0.0, 0.5, 0.9}) {
      // Stalls hit plain passes as well; their own luck averages out over many runs.
      double plain = 0, spent = 0;
      for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        const Outcome outcome = simulate({cost.step_ns, constant(share)}, 3000, seed);
        plain += outcome.plain_ns;
        spent += outcome.spent_ns;
      }
      EXPECT_GE(plain / spent, 0.98) << cost.name << ", accepted " << share;
    }
  }
}

TEST(SpeculationGate, ReachesNearlyTheBestDepth) {
  for (const Cost& cost : k_costs) {
    for (const double share : {0.3, 0.5, 0.7, 0.85, 0.95}) {
      for (const double guess : {0.0, 0.1}) {
        World world{cost.step_ns, constant(share)};
        world.guess_ns = guess * cost.step_ns(1);
        world.source = guess == 0 ? GuessSource::lookup_3 : GuessSource::draft;
        world.stall = 0;
        const double best = best_speedup(world);
        if (best < 1.2) continue;
        const double reached = simulate(world, 4000, 5).speedup();
        EXPECT_GE(reached, 1.0 + 0.85 * (best - 1.0))
            << cost.name << ", accepted " << share << ", guess " << guess << ", best " << best;
      }
    }
  }
}

TEST(SpeculationGate, AFlatCostPaysFromTheFirstTokensOn) {
  World world{k_costs[0].step_ns, constant(0.8)};
  world.stall = 0;
  EXPECT_GE(simulate(world, 64, 3).speedup(), 0.6 * best_speedup(world));
}

TEST(SpeculationGate, FollowsATextThatChanges) {
  for (const Cost& cost : k_costs) {
    for (const std::uint64_t period : {40, 200, 1000}) {
      World world{cost.step_ns, [period](std::uint64_t token, std::uint32_t) {
                    return token / period % 2 == 0 ? 0.0 : 0.95;
                  }};
      world.stall = 0;
      double least = 10;
      for (std::uint64_t seed = 1; seed <= 5; ++seed)
        least = std::min(least, simulate(world, 8000, seed).speedup());
      EXPECT_GE(least, 0.98) << cost.name << ", period " << period;
      if (period == 1000 && std::string(cost.name) == "flat") {
        EXPECT_GE(least, 1.6);  // Half of the text at up to 11 times the speed: at most 1.8.
      }
    }
  }
}

TEST(SpeculationGate, FollowsAMachineThatChanges) {
  // Half-way rows become expensive, as when the experts no longer fit, or cheap.
  const auto cheap = [](std::uint32_t n) { return (10.0 + 0.2 * n) * k_ms; };
  const auto dear = [](std::uint32_t n) { return 10.0 * n * k_ms; };
  for (const bool worsens : {true, false}) {
    World world{cheap, constant(0.5)};
    world.later_step_ns = dear;
    if (!worsens) std::swap(world.step_ns, world.later_step_ns);
    world.stall = 0;
    world.changes_at = 4000;
    // Half of the text at up to 1.7 times the speed.
    EXPECT_GE(simulate(world, 8000, 9).speedup(), 1.15) << worsens;
    // The second half alone: little of what was gained in the first is spent again.
    const double late = simulate(world, 8000, 9).spent_ns - simulate(world, 4000, 9).spent_ns;
    EXPECT_LE(late, 1.03 * 4000 * world.later_step_ns(1)) << worsens;
  }
}

TEST(SpeculationGate, WithoutOffersOrMeasurementsItDecodesPlainly) {
  SpeculationGate gate(k_depth);
  const GuessOffer offer{GuessSource::lookup_4, k_depth, 0, 0};
  EXPECT_EQ(gate.choose({&offer, 1}).n, 0u);
  gate.note_plain(1e6);
  gate.note_plain(1e6);
  EXPECT_EQ(gate.choose({}).n, 0u);
  EXPECT_GT(gate.choose({&offer, 1}).n, 0u);
}

TEST(SpeculationGate, APromptShowsThatRowsAreCheap) {
  // Without it a first trial is shallow, because eight rows might take eight times as long.
  SpeculationGate gate(k_depth), told(k_depth);
  told.note_prompt(100, 1.05e9);
  for (int i = 0; i < 2; ++i) {
    gate.note_plain(1e9);
    told.note_plain(1e9);
  }
  const GuessOffer offer{GuessSource::lookup_4, k_depth, 0, 0};
  EXPECT_EQ(gate.choose({&offer, 1}).n, 1u);
  EXPECT_EQ(told.choose({&offer, 1}).n, k_depth);
}

TEST(SpeculationGate, TakesTheBetterOfTwoSources) {
  SpeculationGate gate(k_depth);
  base::SplitMix64 random(2);
  std::array<std::uint64_t, 2> n_rounds{};
  for (int i = 0; i < 500; ++i) {
    const std::array<GuessOffer, 2> offers = {
        {{GuessSource::lookup_2, k_depth, 0, 0}, {GuessSource::draft, k_depth, 0, 1e6}}};
    const auto choice = gate.choose(offers);
    if (choice.n == 0) {
      gate.note_plain(100e6);
      continue;
    }
    ++n_rounds[choice.offer];
    std::uint32_t n_right = 0;
    const double share = choice.offer == 0 ? 0.1 : 0.8;
    while (n_right < choice.n && random.uniform() < share) ++n_right;
    gate.note_round(offers[choice.offer].source, choice.n, n_right, 100e6,
                    choice.n * offers[choice.offer].guess_ns);
  }
  EXPECT_GT(n_rounds[1], 10 * n_rounds[0]);
}

}  // namespace
}  // namespace sluice::engine
