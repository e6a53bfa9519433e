// Goal: the hit rates of hand-made traces whose outcome is plain, those that were published for two real
// traces, and the order between policies that must hold on any. Method: the traces of the test data where
// they are.
#include "sluice/replay.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "replay/trace_support.hpp"

namespace sluice {
namespace {

/// One layer, one expert per token.
RoutingTrace one_by_one(std::vector<std::uint16_t> experts, std::uint32_t n_experts) {
  RoutingTrace trace;
  trace.n_layers = trace.n_used = 1;
  trace.n_experts = n_experts;
  trace.prompt_chunk = 4;
  trace.is_prompt.assign(experts.size(), false);
  trace.experts = std::move(experts);
  return trace;
}

std::uint64_t hits(const RoutingTrace& trace, ReplayPolicy policy, std::uint64_t n_slots,
                   std::uint32_t warm_up = 0) {
  return replay_trace(trace, policy, n_slots, warm_up).n_hits;
}

TEST(Replay, CountsHandMadeTracesRight) {
  // A loop over one expert more than there are slots.
  const RoutingTrace loop = one_by_one({0, 1, 2, 0, 1, 2, 0, 1, 2}, 3);
  EXPECT_EQ(hits(loop, ReplayPolicy::lru, 2), 0u);
  EXPECT_EQ(hits(loop, ReplayPolicy::global_lru, 2), 0u);
  // Belady keeps two for good from the first round on: 0 and 1.
  EXPECT_EQ(hits(loop, ReplayPolicy::belady, 2), 4u);
  EXPECT_EQ(hits(loop, ReplayPolicy::global_belady, 2), 4u);
  for (const ReplayPolicy policy : k_replay_policies) {
    EXPECT_EQ(hits(loop, policy, 3), 6u) << replay_policy_name(policy);
    EXPECT_EQ(hits(loop, policy, 100), 6u) << replay_policy_name(policy);
    EXPECT_EQ(hits(loop, policy, 0), 0u) << replay_policy_name(policy);
  }
  EXPECT_EQ(replay_trace(loop, ReplayPolicy::lru, 3, 0).n_wanted, 9u);
}

TEST(Replay, LfruKeepsWhatIsUsedOften) {
  std::vector<std::uint16_t> experts;
  for (std::uint16_t i = 0; i < 20; ++i)
    experts.insert(experts.end(),
                   {0, 0, static_cast<std::uint16_t>(1 + i), static_cast<std::uint16_t>(21 + i)});
  const RoutingTrace trace = one_by_one(experts, 41);
  // Two strangers after each other push the favourite out of two LRU slots, never out of LFRU's.
  EXPECT_EQ(hits(trace, ReplayPolicy::lru, 2), 20u);
  EXPECT_EQ(hits(trace, ReplayPolicy::lfru, 2), 39u);
}

TEST(Replay, CountsOnlyDecodedTokensAfterTheWarmUp) {
  RoutingTrace trace = one_by_one({0, 1, 0, 1, 0, 1}, 2);
  EXPECT_EQ(default_warm_up(trace), 2u) << "a third";
  trace.is_prompt = {true, true, true, false, false, false};
  EXPECT_EQ(default_warm_up(trace), 3u) << "the prompt";
  ReplayCell cell = replay_trace(trace, ReplayPolicy::lru, 2, 0);
  EXPECT_EQ(cell.n_wanted, 3u);
  EXPECT_EQ(cell.n_hits, 3u) << "the prompt filled the cache";
  cell = replay_trace(trace, ReplayPolicy::lru, 2, 5);
  EXPECT_EQ(cell.n_wanted, 1u);
  EXPECT_THROW(replay_trace(trace, ReplayPolicy::lru, 2, 6), Error);
  trace.expert_bytes = {100};
  EXPECT_EQ(replay_trace(trace, ReplayPolicy::lru, 0, 3).missed_bytes, 300u);
}

TEST(Replay, APromptPassWantsEachExpertOnce) {
  // Two passes of four: with one slot nothing of the first pass but its most used expert stays.
  RoutingTrace trace = one_by_one({3, 1, 1, 2, 1, 1, 2, 3, 1}, 4);
  trace.is_prompt.assign(9, true);
  trace.is_prompt[8] = false;
  EXPECT_EQ(hits(trace, ReplayPolicy::lfru, 1), 1u);
}

TEST(Replay, LayersNotRecordedWantNothing) {
  RoutingTrace trace = one_by_one({0, RoutingTrace::k_not_recorded, 0}, 2);
  const ReplayCell cell = replay_trace(trace, ReplayPolicy::lru, 1, 0);
  EXPECT_EQ(cell.n_wanted, 2u);
  EXPECT_EQ(cell.n_hits, 1u);
}

TEST(Replay, NoPolicyBeatsTheFutureAndMoreSlotsNeverHurtIt) {
  std::mt19937 random(5);
  RoutingTrace trace;
  trace.n_layers = 3;
  trace.n_experts = 12;
  trace.n_used = 2;
  trace.prompt_chunk = 8;
  for (int token = 0; token < 300; ++token) {
    trace.is_prompt.push_back(token < 20);
    for (int layer = 0; layer < 3; ++layer) {
      // Squaring makes low ids popular.
      const auto draw = [&] { return static_cast<std::uint16_t>(random() % 12 * (random() % 12) / 12); };
      const std::uint16_t first = draw();
      std::uint16_t second = draw();
      while (second == first) second = static_cast<std::uint16_t>((second + 1) % 12);
      trace.experts.insert(trace.experts.end(), {first, second});
    }
  }
  double last = 0, last_global = 0;
  for (std::uint64_t n_slots = 0; n_slots <= 36; n_slots += 3) {
    const double bound = replay_trace(trace, ReplayPolicy::belady, n_slots, 0).hit_rate();
    const double global_bound = replay_trace(trace, ReplayPolicy::global_belady, n_slots, 0).hit_rate();
    for (const ReplayPolicy policy : {ReplayPolicy::lru, ReplayPolicy::lfru})
      EXPECT_LE(replay_trace(trace, policy, n_slots, 0).hit_rate(), bound)
          << replay_policy_name(policy) << n_slots;
    for (const ReplayPolicy policy : k_replay_policies)
      EXPECT_LE(replay_trace(trace, policy, n_slots, 0).hit_rate(), global_bound)
          << replay_policy_name(policy);
    EXPECT_GE(bound, last);
    EXPECT_GE(global_bound, last_global);
    last = bound;
    last_global = global_bound;
  }
  EXPECT_GT(last, 0.9);
}

TEST(Replay, SharesAreOfAllExperts) {
  RoutingTrace trace = one_by_one({0}, 10);
  trace.n_layers = 3;
  EXPECT_EQ(slots_for_share(trace, 0.0), 0u);
  EXPECT_EQ(slots_for_share(trace, 0.25), 8u);
  EXPECT_EQ(slots_for_share(trace, 1.0), 30u);
  EXPECT_THROW(slots_for_share(trace, 1.01), Error);
  EXPECT_THROW(slots_for_share(trace, -0.01), Error);
}

// --- published values --------------------------------------------------------------------------------------

constexpr std::array<double, 9> k_shares = {1, 3, 6.25, 9.4, 12.5, 18.75, 25, 37.5, 50};

struct Published {
  ReplayPolicy policy;
  std::array<double, 9> percents;
};

std::array<double, 9> curve(const RoutingTrace& trace, ReplayPolicy policy) {
  std::array<double, 9> percents{};
  for (std::size_t i = 0; i < k_shares.size(); ++i) {
    percents[i] =
        100 * replay_trace(trace, policy, slots_for_share(trace, k_shares[i] / 100), default_warm_up(trace))
                  .hit_rate();
  }
  return percents;
}

/// Published by simulators that always admit a miss; where one token fills a layer's slots the engine's lfru
/// does not, and must then only be better.
void expect_published(const RoutingTrace& trace, const std::vector<Published>& rows) {
  constexpr double k_points = 3.0;
  for (const Published& row : rows) {
    const std::array<double, 9> found = curve(trace, row.policy);
    for (std::size_t i = 0; i < k_shares.size(); ++i) {
      EXPECT_GE(found[i], row.percents[i] - k_points)
          << replay_policy_name(row.policy) << " at " << k_shares[i];
      const bool fills_slots =
          slots_for_share(trace, k_shares[i] / 100) <= std::uint64_t{trace.n_layers} * trace.n_used;
      if (row.policy == ReplayPolicy::lfru && fills_slots) continue;
      EXPECT_LE(found[i], row.percents[i] + k_points)
          << replay_policy_name(row.policy) << " at " << k_shares[i];
    }
  }
}

void expect_lfru_beats_lru(const RoutingTrace& trace) {
  const auto lfru = curve(trace, ReplayPolicy::lfru), lru = curve(trace, ReplayPolicy::lru);
  for (std::size_t i = 0; i < k_shares.size(); ++i) {
    if (k_shares[i] <= 25) {
      EXPECT_GT(lfru[i], lru[i] + 1) << "at " << k_shares[i];
    } else {
      EXPECT_GE(lfru[i], lru[i]) << "at " << k_shares[i];
    }
  }
}

TEST(Replay, GivesThePublishedHitRatesOfQwen3) {
  SLUICE_NEEDS_DATA(path, "traces/qwen3_30b_a3b_k6.route.csv");
  const RoutingTrace trace = read_trace(path);
  EXPECT_EQ(trace.n_tokens(), 156u);
  EXPECT_EQ(trace.n_layers, 48u);
  EXPECT_EQ(trace.n_experts, 128u);
  EXPECT_EQ(trace.n_used, 6u);
  EXPECT_EQ(default_warm_up(trace), 52u);
  expect_published(trace,
                   {{ReplayPolicy::global_lru, {0, 0, 37.9, 48.2, 59.0, 72.5, 84.3, 94.8, 97.7}},
                    {ReplayPolicy::lru, {10.5, 27.3, 43.0, 53.1, 62.1, 74.0, 83.3, 93.3, 96.9}},
                    {ReplayPolicy::lfru, {10.5, 27.3, 46.2, 57.5, 65.9, 77.2, 85.0, 93.7, 97.0}},
                    {ReplayPolicy::belady, {20.2, 45.6, 64.1, 74.1, 80.4, 88.8, 93.7, 98.1, 98.3}},
                    {ReplayPolicy::global_belady, {20.2, 45.6, 64.1, 74.1, 80.4, 88.8, 93.7, 98.1, 98.3}}});
  expect_lfru_beats_lru(trace);
}

TEST(Replay, GivesThePublishedHitRatesOfOlmoe) {
  SLUICE_NEEDS_DATA(path, "traces/olmoe_1b7b_299tok.jsonl");
  const RoutingTrace trace = read_trace(path);
  EXPECT_EQ(trace.n_tokens(), 299u);
  EXPECT_EQ(trace.n_experts, 64u);
  EXPECT_EQ(default_warm_up(trace), 100u);
  expect_published(trace,
                   {{ReplayPolicy::lru, {4.4, 12.2, 24.7, 35.4, 44.6, 54.2, 62.3, 72.6, 82.0}},
                    {ReplayPolicy::lfru, {4.4, 12.2, 24.7, 35.4, 44.6, 56.9, 64.1, 75.1, 83.9}},
                    {ReplayPolicy::belady, {7.7, 22.5, 42.4, 54.1, 61.9, 72.2, 78.9, 87.8, 93.3}},
                    {ReplayPolicy::global_belady, {7.7, 22.5, 42.4, 54.1, 61.9, 72.2, 78.9, 87.8, 93.3}}});
  expect_lfru_beats_lru(trace);
  for (const double share : {0.01, 0.03, 0.0625, 0.094}) {
    EXPECT_EQ(hits(trace, ReplayPolicy::global_lru, slots_for_share(trace, share), 100), 0u)
        << "a pool below one token's experts is flooded";
  }
}

}  // namespace
}  // namespace sluice
