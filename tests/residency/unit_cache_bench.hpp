#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <set>

#include "residency/unit_cache.hpp"
#include "residency/unit_layers.hpp"
#include "sluice/error.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {

/// A tiny model on disk with a cache over it.
struct Bench {
  test::TempDir dir;
  test::TinyModel model;
  std::vector<std::byte> bytes;
  gguf::ModelFile file;
  std::unique_ptr<WeightStore> store;
  UnitMap map;
  Placement placement;
  std::unique_ptr<UnitCache> cache;
  std::uint64_t loaded_bytes = 0;  ///< Requested before the cache was made.

  Bench(std::uint32_t slots_per_layer, std::uint32_t n_transit, CachePolicy policy = CachePolicy::lfru,
        const storage::FaultPlan* faults = nullptr, std::uint64_t most_bytes = UINT64_MAX,
        base::TicketSource* device = nullptr) {
    const std::filesystem::path path = test::write_tiny_model(dir.path(), model);
    bytes = test::read_bytes(path);
    file = test::parse_bytes(bytes);
    std::vector<std::unique_ptr<storage::File>> files;
    files.push_back(storage::File::open(path.string(), true));
    auto backend = storage::make_pread_backend(8, 2);
    if (faults != nullptr) backend = storage::make_fault_backend(std::move(backend), *faults);
    store = std::make_unique<WeightStore>(
        std::move(files),
        std::make_unique<storage::ReadQueue>(std::move(backend), storage::ReadQueue::Options{}));
    map = map_units(file, model.n_layers, unit_layers(model), store->alignment_bytes());
    placement.slots_per_layer.assign(map.layers.size(), slots_per_layer);
    placement.n_transit = n_transit;
    placement.transit_is_spare = slots_per_layer == model.n_experts && n_transit != 0;
    for (const LayerUnits& layer : map.layers)
      placement.transit_slot_bytes = std::max(placement.transit_slot_bytes, layer.slot_bytes);
    loaded_bytes = store->queue().statistics().requested_bytes;
    cache = std::make_unique<UnitCache>(file, map, placement, policy, *store, base::now_ns, device);
    cache->fill_slots([&](std::uint64_t part) {
      if (part > most_bytes) return false;
      most_bytes -= part;
      return true;
    });
  }

  void expect_right_bytes(std::uint32_t layer_idx, const Lease& lease) const {
    const LayerUnits& layer = map.layers[layer_idx];
    for (std::size_t part = 0; part < layer.n_parts(); ++part) {
      const std::byte* expected = bytes.data() + layer.experts[lease.expert()][part].offset_bytes;
      ASSERT_EQ(std::memcmp(lease.part(part), expected, layer.shapes[part].bytes()), 0)
          << "layer " << layer_idx << " expert " << lease.expert() << " part " << part;
    }
  }

  /// Fetches a set and checks that exactly this set comes, with the right bytes.
  void fetch(std::uint32_t layer_idx, const std::set<std::uint32_t>& experts, std::uint64_t now,
             Admission admission = Admission::always, std::size_t batch = 16) {
    std::vector<UnitCache::Want> wants;
    for (const std::uint32_t expert : experts) wants.push_back({expert, 1, admission});
    cache->begin(layer_idx, wants, now);
    std::set<std::uint32_t> seen;
    std::array<Lease, 16> leases;
    while (const std::size_t n = cache->next(std::span(leases).first(batch))) {
      for (std::size_t i = 0; i < n; ++i) {
        expect_right_bytes(layer_idx, leases[i]);
        EXPECT_TRUE(seen.insert(leases[i].expert()).second) << "handed out twice";
        leases[i] = Lease();
      }
    }
    cache->require_all();
    EXPECT_EQ(seen, experts);
  }
};

/// All experts of all layers, by falling id.
inline std::vector<UnitCache::Unit> all_units(const Bench& bench) {
  std::vector<UnitCache::Unit> units;
  for (std::uint32_t expert = bench.model.n_experts; expert-- > 0;) {
    for (std::uint32_t layer = 0; layer < bench.map.layers.size(); ++layer) units.push_back({layer, expert});
  }
  return units;
}

inline void run_random_fetches(Bench& bench, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::uint64_t now = 1; now <= 60; ++now) {
    for (std::uint32_t layer = 0; layer < bench.model.n_layers; ++layer) {
      std::set<std::uint32_t> experts;
      const std::size_t n = 1 + random() % bench.model.n_experts;
      while (experts.size() < n) experts.insert(random() % bench.model.n_experts);
      const auto admission = random() % 2 == 0 ? Admission::always : Admission::if_better;
      bench.fetch(layer, experts, now, admission, 1 + random() % 16);
    }
  }
}

}  // namespace sluice::residency
