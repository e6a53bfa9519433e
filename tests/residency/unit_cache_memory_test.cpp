// Goal: a unit cache gives memory back and takes it again, at any time, without a wrong byte. Method: a tiny
// model on disk; slots are given back between fetches, within one and while the experts are loaded.
#include "residency/unit_cache_bench.hpp"

namespace sluice::residency {
namespace {

TEST(UnitCache, GivesSlotsBackAndTakesThemAgain) {
  Bench bench(4, 2);
  for (std::uint32_t layer = 0; layer < 3; ++layer) bench.fetch(layer, {0, 1, 2, 3}, 1);
  bench.fetch(0, {2}, 2);
  bench.fetch(0, {3}, 3);
  const std::uint64_t planned = bench.cache->own_slot_bytes();
  EXPECT_EQ(planned, bench.cache->planned_own_slot_bytes());
  EXPECT_EQ(bench.cache->n_slots(), 3u * 4 + 2);

  bench.cache->resize(planned / 2);
  EXPECT_LE(bench.cache->own_slot_bytes(), planned / 2);
  EXPECT_EQ(bench.cache->n_slots(), 3u * 2 + 2);
  const std::uint64_t misses = bench.cache->statistics().n_misses;
  bench.fetch(0, {2, 3}, 4);
  EXPECT_EQ(bench.cache->statistics().n_misses, misses) << "what was used last should have stayed";
  run_random_fetches(bench, 1);

  bench.cache->resize(0);
  EXPECT_EQ(bench.cache->own_slot_bytes(), 0u);
  run_random_fetches(bench, 2);

  bench.cache->resize(planned * 2);
  EXPECT_EQ(bench.cache->own_slot_bytes(), planned);
  run_random_fetches(bench, 3);
  EXPECT_EQ(bench.cache->statistics().n_shrinks, 2u);
  EXPECT_EQ(bench.cache->statistics().n_grows, 1u);
}

TEST(UnitCache, MoreBytesNeverMeanFewerSlotsOfALayer) {
  Bench bench(4, 2);
  bench.cache.reset();
  bench.placement.slots_per_layer = {7, 3, 5};
  bench.cache =
      std::make_unique<UnitCache>(bench.file, bench.map, bench.placement, CachePolicy::lfru, *bench.store);
  std::vector<std::uint32_t> n_slots(3, 0);
  const auto expect_no_layer_gave = [&] {
    for (std::uint32_t layer = 0; layer < n_slots.size(); ++layer) {
      EXPECT_GE(bench.cache->n_layer_slots(layer), n_slots[layer]) << "layer " << layer;
      n_slots[layer] = bench.cache->n_layer_slots(layer);
    }
  };
  bench.cache->fill_slots([&](std::uint64_t) {
    expect_no_layer_gave();
    return true;
  });
  EXPECT_EQ(bench.cache->n_slots(), 7u + 3 + 5 + 2);
  bench.cache->resize(0);
  n_slots.assign(3, 0);
  const std::uint64_t planned = bench.cache->planned_own_slot_bytes();
  for (std::uint64_t bytes = 0; bytes < planned + planned / 50; bytes += planned / 50) {
    bench.cache->resize(bytes);
    EXPECT_LE(bench.cache->own_slot_bytes(), bytes);
    expect_no_layer_gave();
  }
  EXPECT_EQ(bench.cache->own_slot_bytes(), planned);
}

TEST(UnitCache, WhatKeepsAllStreamsOnceItGaveMemoryBackAndKeepsAllAgain) {
  Bench bench(8, 4);
  UnitCache& cache = *bench.cache;
  const std::uint64_t all = 24 * bench.map.layers[0].slot_bytes;
  const std::uint64_t transit = 4 * bench.placement.transit_slot_bytes;
  EXPECT_FALSE(cache.is_streaming());
  EXPECT_EQ(cache.n_slots(), 24u) << "transit slots have no memory";
  EXPECT_EQ(cache.slot_bytes(), all);
  EXPECT_EQ(cache.planned_own_slot_bytes(), all - transit);
  cache.load_all();

  std::mt19937 random(11);
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t wanted = random() % cache.planned_own_slot_bytes();
    cache.resize(wanted);
    EXPECT_TRUE(cache.is_streaming());
    EXPECT_LE(cache.own_slot_bytes(), wanted);
    EXPECT_LE(cache.slot_bytes(), wanted + transit);
    run_random_fetches(bench, static_cast<std::uint32_t>(i));
    cache.resize(cache.planned_own_slot_bytes());
    EXPECT_FALSE(cache.is_streaming());
    EXPECT_EQ(cache.slot_bytes(), all);
    run_random_fetches(bench, static_cast<std::uint32_t>(i));
  }
  const std::uint64_t before = cache.statistics().n_misses;
  run_random_fetches(bench, 99);
  EXPECT_EQ(cache.statistics().n_misses, before) << "every expert is back";
  EXPECT_EQ(cache.statistics().n_shrinks, 12u);
  EXPECT_EQ(cache.statistics().n_grows, 12u);
}

TEST(UnitCache, GivesBackWithinAFetchWhatTheFetchDoesNotUse) {
  for (const std::uint32_t n_slots : {8u, 6u}) {
    Bench bench(n_slots, 4);
    UnitCache& cache = *bench.cache;
    if (!cache.is_streaming()) cache.load_all();
    std::vector<UnitCache::Want> wants;
    for (std::uint32_t expert = 0; expert < 8; ++expert) wants.push_back({expert, 1, Admission::if_better});
    cache.begin(1, wants, 1);
    std::array<Lease, 2> leases;
    std::vector<bool> seen(8);
    const std::uint64_t slot = bench.map.layers[0].slot_bytes;
    int n_batches = 0;
    while (const std::size_t n = cache.next(leases)) {
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_FALSE(seen[leases[i].expert()]);
        seen[leases[i].expert()] = true;
        bench.expect_right_bytes(1, leases[i]);
        leases[i] = Lease();
      }
      if (++n_batches > 2) continue;
      const std::uint64_t before = cache.own_slot_bytes();
      cache.give_back(2 * slot);
      EXPECT_LE(cache.own_slot_bytes() + 2 * slot, before);
      EXPECT_TRUE(cache.is_streaming());
      EXPECT_LE(cache.slot_bytes(), cache.own_slot_bytes() + 4 * bench.placement.transit_slot_bytes);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 8);
    run_random_fetches(bench, n_slots);
    cache.resize(cache.planned_own_slot_bytes());
    run_random_fetches(bench, n_slots + 1);
  }
}

TEST(UnitCache, GivesBackWhileItLoadsWhatIsNotReadYet) {
  for (const int n_reads : {0, 1, 5, 20}) {
    Bench bench(8, 4);
    UnitCache& cache = *bench.cache;
    int n_steps = 0;
    cache.load_all([&] {
      if (n_steps++ == n_reads) cache.give_back(2 * bench.map.layers[0].slot_bytes);
    });
    EXPECT_TRUE(cache.is_streaming());
    EXPECT_LT(cache.own_slot_bytes(), cache.planned_own_slot_bytes());
    run_random_fetches(bench, static_cast<std::uint32_t>(n_reads));
    EXPECT_EQ(cache.n_leased(), 0u);
  }
}

TEST(UnitCache, WhenTheMemoryOfAllCannotBeHadItStreams) {
  const std::uint64_t slot = Bench(1, 2).map.layers[0].slot_bytes;
  for (const std::uint64_t n_had : {0u, 1u, 9u, 20u}) {
    Bench bench(8, 4, CachePolicy::lfru, nullptr, n_had * slot);
    EXPECT_TRUE(bench.cache->is_streaming());
    EXPECT_LE(bench.cache->slot_bytes(), std::max<std::uint64_t>(n_had, 4) * slot);
    run_random_fetches(bench, static_cast<std::uint32_t>(n_had));
  }
}

TEST(UnitCache, AChangeSmallerThanASlotDisturbsNothing) {
  Bench bench(4, 2);
  const std::array<UnitCache::Want, 1> wants = {{{5, 1}}};
  bench.cache->begin(1, wants, 1);
  bench.cache->resize(bench.cache->planned_own_slot_bytes());
  std::array<Lease, 1> lease;
  EXPECT_EQ(bench.cache->next(lease), 1u) << "the fetch under way was given up";
  lease[0] = Lease();
  const std::uint64_t slot = bench.map.layers[0].slot_bytes;
  bench.cache->resize(5 * slot);
  bench.cache->resize(6 * slot - 1);
  EXPECT_EQ(bench.cache->statistics().n_grows, 0u);
  bench.cache->resize(6 * slot);
  EXPECT_EQ(bench.cache->own_slot_bytes(), 6 * slot) << "one slot is enough to make a difference";
  EXPECT_EQ(bench.cache->statistics().n_grows, 1u);
}

}  // namespace
}  // namespace sluice::residency
