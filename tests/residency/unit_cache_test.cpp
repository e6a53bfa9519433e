// Goal: whatever the number of slots, the policy and the drive's behaviour, a leased expert's bytes are the
// file's bytes, and no expert is read twice at once. Method: random fetches over a tiny model against the
// file itself.
#include <functional>

#include "residency/unit_cache_bench.hpp"

namespace sluice::residency {
namespace {

TEST(UnitCache, GivesTheFilesBytesWithAnyNumberOfSlots) {
  for (const CachePolicy policy : {CachePolicy::lfru, CachePolicy::lru}) {
    for (const auto& [slots, transit] :
         {std::pair{0u, 1u}, {0u, 4u}, {1u, 1u}, {3u, 2u}, {8u, 0u}, {8u, 4u}}) {
      Bench bench(slots, transit, policy);
      run_random_fetches(bench, slots * 10 + transit);
      const CacheStatistics counters = bench.cache->statistics();
      EXPECT_GT(counters.n_misses, 0u);
      if (slots == 0) {
        EXPECT_EQ(counters.n_hits, 0u);
      }
      if (slots == 8) {
        EXPECT_EQ(counters.n_misses, bench.map.n_units()) << "each expert is read once when all fit";
      }
    }
  }
}

TEST(UnitCache, GivesTheFilesBytesThroughFaults) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    storage::FaultPlan faults;
    faults.seed = seed;
    faults.short_read_rate = 0.3;
    faults.eintr_rate = 0.1;
    faults.eagain_rate = 0.1;
    faults.delay_rate = 0.4;
    faults.reorder = true;
    faults.full_rate = 0.3;
    Bench bench(2, 2, CachePolicy::lfru, &faults);
    run_random_fetches(bench, static_cast<std::uint32_t>(seed));
  }
}

TEST(UnitCache, HandsOutHitsFirst) {
  Bench bench(4, 2);
  bench.fetch(0, {3}, 1);
  const std::array<UnitCache::Want, 3> wants = {{{1, 1}, {3, 1}, {2, 1}}};
  bench.cache->begin(0, wants, 2);
  std::array<Lease, 1> lease;
  ASSERT_EQ(bench.cache->next(lease), 1u);
  EXPECT_EQ(lease[0].expert(), 3u);
}

TEST(UnitCache, NeverEvictsWhatTheStepWants) {
  Bench bench(2, 1);
  bench.fetch(0, {0, 1}, 1);
  const std::uint64_t before = bench.cache->statistics().n_misses;
  bench.fetch(0, {0, 1, 2}, 2);
  EXPECT_EQ(bench.cache->statistics().n_misses, before + 1) << "0 and 1 were there and had to stay";
}

TEST(UnitCache, PrefillDoesNotSweepWhatIsUsedOften) {
  Bench bench(2, 3);
  for (std::uint64_t now = 1; now <= 20; ++now) bench.fetch(0, {0, 1}, now);
  const std::uint64_t before = bench.cache->statistics().n_misses;
  bench.fetch(0, {2, 3, 4, 5, 6, 7}, 21, Admission::if_better);
  bench.fetch(0, {0, 1}, 22);
  EXPECT_EQ(bench.cache->statistics().n_misses, before + 6);
}

TEST(UnitCache, JoinsAReadInFlight) {
  Bench bench(4, 2);
  const std::array<UnitCache::Want, 1> wants = {{{5, 1}}};
  bench.cache->begin(1, wants, 1);
  bench.cache->abandon();  // The read goes on without anybody waiting.
  bench.fetch(1, {5}, 2);
  const CacheStatistics counters = bench.cache->statistics();
  EXPECT_EQ(counters.n_misses, 1u);
  EXPECT_EQ(counters.n_joins + counters.n_hits, 1u);
}

TEST(UnitCache, AbandonedFetchesLoseNoSlot) {
  Bench bench(1, 2);
  std::mt19937 random(7);
  for (std::uint64_t now = 1; now <= 100; ++now) {
    std::vector<UnitCache::Want> wants;
    for (std::uint32_t expert = 0; expert < 8; ++expert) wants.push_back({expert, 1});
    bench.cache->begin(now % 3, wants, now);
    std::array<Lease, 2> leases;
    if (random() % 2 == 0) bench.cache->next(leases);
    leases = {};
    bench.cache->abandon();
  }
  run_random_fetches(bench, 8);
}

TEST(UnitCache, PreloadReadsEverythingOnce) {
  Bench bench(8, 0);
  bench.cache->load_all();
  for (std::uint32_t layer = 0; layer < 3; ++layer) bench.fetch(layer, {0, 1, 2, 3, 4, 5, 6, 7}, 1);
  EXPECT_EQ(bench.cache->statistics().n_misses, 0u);
  EXPECT_EQ(bench.cache->statistics().n_hits, 24u);
}

TEST(UnitCache, WhatWasReadAheadIsNotReadAgain) {
  Bench bench(4, 2);
  const std::array<std::uint16_t, 3> guesses = {5, 6, 7};
  const std::array<UnitCache::Want, 1> wants = {{{1, 1}}};
  bench.cache->begin(0, wants, 1);
  bench.cache->look_ahead(1, guesses, 2);
  std::array<Lease, 1> lease;
  while (bench.cache->next(lease) != 0) lease[0] = Lease();
  bench.fetch(1, {5, 6}, 1);
  const CacheStatistics counters = bench.cache->statistics();
  EXPECT_EQ(counters.n_ahead, 2u) << "the third guess was more than allowed";
  EXPECT_EQ(counters.n_ahead_used, 2u);
  EXPECT_EQ(counters.n_misses, 1u);
  EXPECT_EQ(counters.n_hits + counters.n_joins, 0u);
  EXPECT_EQ(bench.store->queue().statistics().requested_bytes - bench.loaded_bytes,
            3 * bench.map.layers[0].weight_bytes);
}

TEST(UnitCache, LookAheadWaitsForTheDemandOfTheLayer) {
  storage::FaultPlan faults;
  faults.delay_rate = 1;
  faults.delay_polls = 50;
  Bench bench(4, 2, CachePolicy::lfru, &faults);
  const std::array<std::uint16_t, 1> guesses = {5};
  const std::array<UnitCache::Want, 2> wants = {{{1, 1}, {2, 1}}};
  bench.cache->begin(0, wants, 1);
  bench.cache->look_ahead(1, guesses, 8);
  EXPECT_EQ(bench.cache->statistics().n_ahead, 0u);
  std::array<Lease, 2> leases;
  while (bench.cache->next(leases) != 0) leases = {};
  EXPECT_EQ(bench.cache->statistics().n_ahead, 1u);
}

TEST(UnitCache, WrongGuessesCostNothingButTheirReads) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    storage::FaultPlan faults;
    faults.seed = seed;
    faults.delay_rate = 0.5;
    faults.delay_polls = 20;
    faults.reorder = true;
    faults.full_rate = 0.5;
    faults.short_read_rate = 0.2;
    Bench bench(seed % 3 + 1, 2, CachePolicy::lfru, &faults);
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    for (std::uint64_t now = 1; now <= 80; ++now) {
      for (std::uint32_t layer = 0; layer < bench.model.n_layers; ++layer) {
        const std::array<UnitCache::Want, 2> wants = {{{static_cast<std::uint32_t>(random() % 4), 1},
                                                       {static_cast<std::uint32_t>(4 + random() % 4), 1}}};
        bench.cache->begin(layer, wants, now);
        const std::array<std::uint16_t, 3> guesses = {static_cast<std::uint16_t>(random() % 3),
                                                      static_cast<std::uint16_t>(3 + random() % 3), 7};
        bench.cache->look_ahead((layer + 1) % bench.model.n_layers, guesses, random() % 4);
        std::array<Lease, 1> lease;
        std::size_t n_seen = 0;
        while (bench.cache->next(lease) != 0) {
          bench.expect_right_bytes(layer, lease[0]);
          lease[0] = Lease();
          ++n_seen;
        }
        ASSERT_EQ(n_seen, 2u);
      }
    }
    const CacheStatistics counters = bench.cache->statistics();
    EXPECT_GT(counters.n_ahead_used, 0u);
    EXPECT_GT(counters.n_ahead_wasted, 0u);
    EXPECT_GE(counters.n_ahead, counters.n_ahead_used + counters.n_ahead_wasted);
    EXPECT_EQ(counters.n_hits + counters.n_joins + counters.n_misses + counters.n_ahead_used,
              80u * bench.model.n_layers * 2);
  }
}

TEST(UnitCache, BelowOneTokensSetAMissDisplacesOnlyWhatScoresLower) {
  const auto hits_after_a_stranger = [](CachePolicy policy) {
    Bench bench(2, 3, policy);
    for (std::uint64_t now = 1; now <= 3; ++now) bench.fetch(0, {0, 1, 2}, now);
    bench.fetch(0, {3, 4, 5}, 4);
    const std::uint64_t before = bench.cache->statistics().n_hits;
    bench.fetch(0, {0, 1, 2}, 5);
    return bench.cache->statistics().n_hits - before;
  };
  EXPECT_EQ(hits_after_a_stranger(CachePolicy::lfru), 2u);
  EXPECT_EQ(hits_after_a_stranger(CachePolicy::lru), 0u) << "lru always takes in the newest";
}

TEST(UnitCache, PreloadsInOrderIntoFreeSlotsOnly) {
  Bench bench(3, 2);
  bench.fetch(0, {0}, 1);
  bench.cache->queue_preload(all_units(bench));
  bench.cache->preload_while([] { return true; });
  EXPECT_EQ(bench.cache->statistics().n_preloaded, 3 * bench.map.layers.size() - 1);
  const std::uint64_t misses = bench.cache->statistics().n_misses;
  bench.fetch(0, {0, 6, 7}, 2);
  for (std::uint32_t layer = 1; layer < bench.map.layers.size(); ++layer) bench.fetch(layer, {5, 6, 7}, 2);
  EXPECT_EQ(bench.cache->statistics().n_misses, misses);
}

TEST(UnitCache, PreloadsWhileFetchesAreComputedWithoutASingleWrongByte) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    storage::FaultPlan faults;
    faults.seed = seed;
    faults.delay_rate = 0.5;
    faults.short_read_rate = 0.2;
    faults.reorder = true;
    Bench bench(4, 2, CachePolicy::lfru, &faults);
    bench.cache->queue_preload(all_units(bench));
    run_random_fetches(bench, static_cast<std::uint32_t>(seed));
    EXPECT_GT(bench.cache->statistics().n_preloaded, 0u);
  }
}

TEST(UnitCache, StopsPreloadingWhenAskedAndGoesOnLater) {
  Bench bench(8, 0);
  bench.cache->queue_preload(all_units(bench));
  bench.cache->preload_while([] { return false; });
  EXPECT_EQ(bench.cache->statistics().n_preloaded, 0u);
  int n_left = 5;
  bench.cache->preload_while([&n_left] { return --n_left > 0; });
  const std::uint64_t n_some = bench.cache->statistics().n_preloaded;
  EXPECT_GT(n_some, 0u);
  EXPECT_LT(n_some, bench.map.n_units());
  bench.cache->preload_while([] { return true; });
  EXPECT_EQ(bench.cache->statistics().n_preloaded, bench.map.n_units());
}

TEST(UnitCache, JoinsAPreloadThatIsUnderWay) {
  storage::FaultPlan faults;
  faults.delay_rate = 1;
  Bench bench(8, 0, CachePolicy::lfru, &faults);
  bench.cache->queue_preload({{1, 5}});
  int n_left = 2;
  bench.cache->preload_while([&n_left] { return --n_left > 0; });
  bench.fetch(1, {5}, 1);
  const CacheStatistics counters = bench.cache->statistics();
  EXPECT_EQ(counters.n_preloaded, 1u);
  EXPECT_EQ(counters.n_misses, 0u);
  EXPECT_EQ(counters.n_joins, 1u);
}

TEST(UnitCache, PreloadsThatDemandCancelledComeLater) {
  storage::FaultPlan faults;
  faults.delay_rate = 1;
  Bench bench(6, 2, CachePolicy::lfru, &faults);
  bench.cache->queue_preload(all_units(bench));
  // Each fetch lets two begin, and the next one cancels what has not reached the drive.
  for (std::uint64_t now = 1; now <= 20; ++now) bench.fetch(now % 2, {0, 1}, now);
  bench.cache->preload_while([] { return true; });
  const std::uint64_t misses = bench.cache->statistics().n_misses;
  bench.fetch(2, {2, 3, 4, 5, 6, 7}, 21);
  for (std::uint32_t layer = 0; layer < 2; ++layer) bench.fetch(layer, {0, 1, 4, 5, 6, 7}, 21);
  EXPECT_EQ(bench.cache->statistics().n_misses, misses);
  EXPECT_EQ(bench.cache->statistics().n_preloaded, 4u + 4u + 6u);
}

TEST(UnitCache, GivesTheFilesBytesFromTwoCopies) {
  Bench bench(3, 2);
  std::vector<std::unique_ptr<storage::File>> files, copies;
  for (auto* list : {&files, &copies}) {
    list->push_back(storage::File::open(bench.store->file(0).path(), true));
    list->back()->widen_alignment(4096);  // More than many drives need, as when the other copy's does.
  }
  bench.cache.reset();
  bench.store = std::make_unique<WeightStore>(
      std::move(files),
      std::make_unique<storage::ReadQueue>(storage::make_pread_backend(8, 2), storage::ReadQueue::Options{}),
      std::move(copies));
  bench.map =
      map_units(bench.file, bench.model.n_layers, unit_layers(bench.model), bench.store->alignment_bytes());
  for (const LayerUnits& layer : bench.map.layers)
    bench.placement.transit_slot_bytes = std::max(bench.placement.transit_slot_bytes, layer.slot_bytes);
  bench.cache =
      std::make_unique<UnitCache>(bench.file, bench.map, bench.placement, CachePolicy::lfru, *bench.store);
  bench.cache->fill_slots([](std::uint64_t) { return true; });
  run_random_fetches(bench, 1);
  EXPECT_EQ(bench.store->queue().drives().size(), 2u);
}

TEST(UnitCache, UnitsMayHaveOneOrTwoParts) {
  for (const std::size_t n_parts : {1u, 2u}) {
    Bench bench(2, 2);
    std::vector<UnitLayerSpec> layers = unit_layers(bench.model);
    for (UnitLayerSpec& layer : layers) layer.parts.resize(n_parts);
    bench.cache.reset();
    bench.map = map_units(bench.file, bench.model.n_layers, layers, bench.store->alignment_bytes());
    bench.cache =
        std::make_unique<UnitCache>(bench.file, bench.map, bench.placement, CachePolicy::lfru, *bench.store);
    bench.cache->fill_slots([](std::uint64_t) { return true; });
    run_random_fetches(bench, 4);
  }
}

/// A device that does its work only when somebody waits for it, and looks at the weights then.
class SlowDevice final : public base::TicketSource {
 public:
  bool is_done(base::Ticket ticket) noexcept override { return ticket <= done_; }
  void wait(base::Ticket ticket) noexcept override {
    while (done_ < ticket) works_[done_++]();
    ++n_waits;
  }
  base::Ticket enqueue(std::function<void()> work) {
    works_.push_back(std::move(work));
    return works_.size();
  }
  std::size_t n_waits = 0;

 private:
  std::vector<std::function<void()>> works_;
  base::Ticket done_ = 0;
};

TEST(UnitCache, KeepsWhatADeviceHasNotComputedYet) {
  SlowDevice device;
  Bench bench(2, 1, CachePolicy::lfru, nullptr, UINT64_MAX, &device);
  std::mt19937 random(3);
  std::size_t n_computed = 0, n_asked = 0;
  for (std::uint64_t now = 1; now <= 40; ++now) {
    const std::uint32_t layer = now % bench.model.n_layers;
    std::vector<UnitCache::Want> wants;
    for (std::uint32_t expert = random() % 3; expert < 8; expert += 1 + random() % 3)
      wants.push_back({expert, 1});
    bench.cache->begin(layer, wants, now);
    std::array<Lease, 1> lease;
    while (bench.cache->next(lease) != 0) {
      bench.expect_right_bytes(layer, lease[0]);
      const std::uint32_t expert = lease[0].expert();
      const std::byte* weights = lease[0].part(0);
      const std::byte* expected =
          bench.bytes.data() + bench.map.layers[layer].experts[expert][0].offset_bytes;
      const std::uint64_t bytes = bench.map.layers[layer].shapes[0].bytes();
      ++n_asked;
      lease[0].release_after(device.enqueue([=, &n_computed] {
        EXPECT_EQ(std::memcmp(weights, expected, bytes), 0) << "overwritten before its ticket was done";
        ++n_computed;
      }));
      EXPECT_FALSE(lease[0]);
    }
    EXPECT_EQ(bench.cache->failures().size(), 0u);
    if (now % 10 == 5) bench.cache->resize(bench.cache->planned_own_slot_bytes() / (now % 20 == 5 ? 2 : 1));
  }
  EXPECT_GT(device.n_waits, 10u);
  EXPECT_NE(bench.cache->n_leased(), 0u);
  bench.cache.reset();  // Waits for what the device still reads.
  EXPECT_EQ(n_computed, n_asked);
}

TEST(UnitCache, CountsTheBytesOfItsMisses) {
  Bench bench(2, 2);
  const std::uint64_t before = bench.store->queue().statistics().requested_bytes;
  run_random_fetches(bench, 3);
  const std::uint64_t unit = bench.map.layers[0].weight_bytes;
  EXPECT_EQ(bench.store->queue().statistics().requested_bytes - before,
            bench.cache->statistics().n_misses * unit);
}

TEST(UnitCache, APromptBesideDecodingRowsDisplacesOnlyWhatScoresLower) {
  Bench bench(4, 4);
  // Four experts are in use and fill the layer's slots.
  for (std::uint64_t now = 1; now <= 8; ++now) bench.fetch(0, {0, 1, 2, 3}, now);
  const std::vector<UnitCache::Want> wants = {
      {0, 1, Admission::always}, {5, 1, Admission::if_better}, {6, 1, Admission::always}};
  bench.cache->begin(0, wants, 9);
  std::array<Lease, 4> leases;
  while (const std::size_t n = bench.cache->next(leases)) {
    for (std::size_t i = 0; i < n; ++i) leases[i] = Lease();
  }
  const std::uint64_t n_misses = bench.cache->statistics().n_misses;
  bench.fetch(0, {6}, 10);
  EXPECT_EQ(bench.cache->statistics().n_misses, n_misses) << "what the decoding row used was not kept";
  bench.fetch(0, {5}, 11);
  EXPECT_EQ(bench.cache->statistics().n_misses, n_misses + 1) << "what the prompt used took a slot";
}

}  // namespace
}  // namespace sluice::residency
