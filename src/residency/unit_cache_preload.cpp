// Reads into slots that nobody has asked for yet: all experts when the model is opened, the hottest ones
// later.
#include <array>
#include <utility>

#include "residency/unit_cache.hpp"

namespace sluice::residency {

void UnitCache::queue_preload(std::vector<Unit> units) {
  preload_ = std::move(units);
  next_preload_ = 0;
}

void UnitCache::preload_some() {
  // As much as demand may find under way before it.
  constexpr std::size_t k_max_preloading = 2;
  if (reader_.n_reading() != n_preloading_) return;  // Look-ahead knows better what is wanted next.
  while (next_preload_ < preload_.size() && n_preloading_ < k_max_preloading && reader_.has_room()) {
    const Unit unit = preload_[next_preload_++];
    if (table_.find(unit) != SlotTable::k_none) continue;
    const std::uint32_t slot = table_.first_free(unit.layer);
    if (slot == SlotTable::k_none) continue;
    start_read(slot, unit, ReadFor::preload);
    ++n_preloading_;
    ++statistics_.n_preloaded;
  }
}

void UnitCache::preload_while(base::FunctionRef<bool()> may_go_on) {
  while (may_go_on()) {
    preload_some();
    if (reader_.n_reading() == 0) return;
    complete(1);
  }
}

void UnitCache::load_all(LoadStep step) {
  const auto complete_one = [&] {
    complete(1);
    step();
  };
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    for (std::uint32_t expert = 0; expert < map_.layers[layer].n_experts; ++expert) {
      if (table_.find({layer, expert}) != SlotTable::k_none) continue;
      while (!reader_.has_room()) complete_one();
      const std::uint32_t slot = table_.first_free(layer);
      if (slot == SlotTable::k_none) break;
      // Nothing else is read now, and what has not begun can be dropped.
      start_read(slot, {layer, expert}, ReadFor::preload);
      ++n_preloading_;
    }
  }
  while (reader_.n_reading() != 0) complete_one();
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    for (std::uint32_t expert = 0; expert < map_.layers[layer].n_experts; ++expert) {
      if (table_.find({layer, expert}) != SlotTable::k_none) continue;
      // A failed read emptied its slot; reading it again on its own gives the error its place.
      if (n_layer_slots(layer) < map_.layers[layer].n_experts) continue;
      const Want want{expert, 0};
      begin(map_.layers[layer].layer_idx, {&want, 1}, 0);
      std::array<Lease, 1> lease;
      while (next(lease) != 0) lease[0] = Lease();
      require_all();
    }
  }
}

}  // namespace sluice::residency
