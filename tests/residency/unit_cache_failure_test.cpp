// Goal: a unit that cannot be read is told by name, costs only those who want it, and is read again when it
// is wanted again; a guess or preload that fails is nobody's error.
#include <gtest/gtest.h>

#include "residency/unit_cache_bench.hpp"

namespace sluice::residency {
namespace {

TEST(UnitCacheFailures, TheOthersOfTheFetchAreHandedOut) {
  Bench probe(1, 2);
  storage::FaultPlan faults;
  faults.reorder = true;
  for (const std::uint32_t expert : {4u, 5u}) {
    const UnitPart where = probe.map.layers[1].experts[expert][static_cast<std::size_t>(ExpertPart::down)];
    faults.failing_ranges.push_back({where.offset_bytes + 8192, where.offset_bytes + 8200, 5});
  }
  // With two slots both are read at once, and nothing is under way when they have failed.
  for (const std::uint32_t n_slots : {1u, 2u, 6u}) {
    Bench bench(n_slots, 1, CachePolicy::lfru, &faults);
    for (std::uint64_t now = 1; now <= 3; ++now) {
      std::vector<UnitCache::Want> wants;
      for (std::uint32_t expert = 0; expert < 8; ++expert) wants.push_back({expert, 1});
      bench.cache->begin(1, wants, now);
      std::set<std::uint32_t> got, failed;
      std::array<Lease, 16> leases;
      while (const std::size_t n = bench.cache->next(leases)) {
        for (std::size_t i = 0; i < n; ++i) {
          bench.expect_right_bytes(1, leases[i]);
          got.insert(leases[i].expert());
          leases[i] = Lease();
        }
      }
      for (const UnitFailure& failure : bench.cache->failures()) {
        EXPECT_EQ(failure.code, ErrorCode::io);
        const std::string name = "blk.1.ffn_down_exps.weight (expert " + std::to_string(failure.expert) + ")";
        EXPECT_NE(failure.message.find(name), std::string::npos) << failure.message;
        EXPECT_TRUE(failed.insert(failure.expert).second) << "told twice";
      }
      EXPECT_EQ(got, (std::set<std::uint32_t>{0, 1, 2, 3, 6, 7}));
      EXPECT_EQ(failed, (std::set<std::uint32_t>{4, 5}));
      EXPECT_THROW(bench.cache->require_all(), Error);
      EXPECT_EQ(bench.cache->n_leased(), 0u);
    }
    bench.fetch(1, {0, 1, 2, 3, 6, 7}, 5);
    EXPECT_TRUE(bench.cache->failures().empty());
    bench.cache->require_all();
  }
}

TEST(UnitCacheFailures, AFailedBackendIsAnErrorInEveryCallAndTheCacheCanBeDestroyed) {
  for (std::uint64_t fails_at = 1; fails_at < 30; ++fails_at) {
    const storage::FaultPlan faults{.seed = fails_at, .delay_rate = 0.5, .fails_at_wait = fails_at};
    Bench bench(3, 4, CachePolicy::lfru, &faults);
    int n_errors = 0;
    for (std::uint32_t pass = 0; pass < 40; ++pass) {
      const std::uint32_t layer = pass % 2;
      const UnitCache::Want wants[] = {{pass % 8, 1}, {(pass + 3) % 8, 1}, {(pass + 5) % 8, 1}};
      try {
        bench.cache->begin(layer, wants, pass);
        std::array<Lease, 2> leases;
        while (const std::size_t n = bench.cache->next(leases)) {
          for (std::size_t i = 0; i < n; ++i) {
            bench.expect_right_bytes(layer, leases[i]);
            leases[i] = Lease();
          }
        }
        EXPECT_EQ(n_errors, 0) << "after an error nothing may be read";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        ++n_errors;
      }
    }
    EXPECT_GT(n_errors, 0);
    EXPECT_THROW(bench.cache->resize(0), Error);
  }
}

TEST(UnitCacheFailures, FailedReadNamesTensorAndOffsetAndTheNextFetchWorks) {
  Bench probe(1, 2);
  const UnitPart where = probe.map.layers[1].experts[4][static_cast<std::size_t>(ExpertPart::up)];
  storage::FaultPlan faults;
  // Far enough inside that the windows of the neighbours do not reach it.
  faults.failing_ranges.push_back({where.offset_bytes + 8192, where.offset_bytes + 8200, 5});
  Bench bench(1, 2, CachePolicy::lfru, &faults);
  const std::array<UnitCache::Want, 3> wants = {{{2, 1}, {4, 1}, {6, 1}}};
  bench.cache->begin(1, wants, 1);
  try {
    std::array<Lease, 1> lease;
    while (bench.cache->next(lease) != 0) lease[0] = Lease();
    bench.cache->require_all();
    FAIL() << "the read error was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    const std::string message = error.what();
    EXPECT_NE(message.find("blk.1.ffn_up_exps.weight (expert 4)"), std::string::npos) << message;
    EXPECT_NE(message.find("offset"), std::string::npos) << message;
    EXPECT_NE(message.find("Input/output error"), std::string::npos) << message;
  }
  for (std::uint64_t now = 2; now < 10; ++now) bench.fetch(1, {0, 1, 2, 3, 5, 6, 7}, now);
}

TEST(UnitCacheFailures, AReadThatFailedForAnEarlierFetchIsDoneAgain) {
  Bench probe(1, 2);
  const UnitPart where = probe.map.layers[1].experts[4][static_cast<std::size_t>(ExpertPart::up)];
  bool fails = true;
  storage::FaultPlan faults;
  faults.failing_ranges.push_back({where.offset_bytes + 8192, where.offset_bytes + 8200, 5});
  faults.applies_to = [&fails](int) { return fails; };
  Bench bench(2, 2, CachePolicy::lfru, &faults);
  const std::array<UnitCache::Want, 1> wants = {{{4, 1}}};
  bench.cache->begin(1, wants, 1);
  // The failure is on its way when the fetch is given up, and must not end the one that finds it under way.
  bench.cache->abandon();
  fails = false;
  bench.fetch(1, {4}, 2);
  EXPECT_EQ(bench.cache->statistics().n_joins, 1u);
}

TEST(UnitCacheFailures, AGuessThatCannotBeReadIsNoErrorUntilItIsWanted) {
  Bench probe(1, 2);
  const UnitPart where = probe.map.layers[1].experts[4][static_cast<std::size_t>(ExpertPart::up)];
  storage::FaultPlan faults;
  faults.failing_ranges.push_back({where.offset_bytes + 8192, where.offset_bytes + 8200, 5});
  Bench bench(2, 2, CachePolicy::lfru, &faults);
  const std::array<std::uint16_t, 1> guesses = {4};
  const std::array<UnitCache::Want, 1> wants = {{{1, 1}}};
  bench.cache->begin(0, wants, 1);
  bench.cache->look_ahead(1, guesses, 1);
  std::array<Lease, 1> lease;
  while (bench.cache->next(lease) != 0) lease[0] = Lease();
  bench.fetch(1, {2}, 1);
  const std::array<UnitCache::Want, 1> bad = {{{4, 1}}};
  bench.cache->begin(1, bad, 2);
  EXPECT_EQ(bench.cache->next(lease), 0u);
  EXPECT_THROW(bench.cache->require_all(), Error);
  bench.fetch(1, {2, 3}, 3);
}

TEST(UnitCacheFailures, AFailedPreloadIsForgottenUntilTheExpertIsWanted) {
  Bench probe(1, 2);
  const UnitPart where = probe.map.layers[1].experts[4][static_cast<std::size_t>(ExpertPart::up)];
  storage::FaultPlan faults;
  faults.failing_ranges.push_back({where.offset_bytes + 8192, where.offset_bytes + 8200, 5});
  Bench bench(8, 0, CachePolicy::lfru, &faults);
  bench.cache->queue_preload(all_units(bench));
  bench.cache->preload_while([] { return true; });
  bench.fetch(1, {0, 1, 2, 3, 5, 6, 7}, 1);
  EXPECT_EQ(bench.cache->statistics().n_misses, 0u);
  EXPECT_THROW(bench.fetch(1, {4}, 2), Error);
}

}  // namespace
}  // namespace sluice::residency
