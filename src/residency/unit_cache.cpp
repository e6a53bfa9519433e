#include "residency/unit_cache.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "residency/zero_check.hpp"

namespace sluice::residency {
namespace {

constexpr std::size_t k_max_units_in_flight = 256;

std::uint64_t request_id(std::uint32_t slot_idx, std::size_t part) {
  return std::uint64_t{slot_idx} * k_max_unit_parts + part;
}

}  // namespace

Lease::Lease(Lease&& other) noexcept : cache_(std::exchange(other.cache_, nullptr)), slot_(other.slot_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    if (cache_ != nullptr) cache_->release(slot_);
    cache_ = std::exchange(other.cache_, nullptr);
    slot_ = other.slot_;
  }
  return *this;
}

Lease::~Lease() {
  if (cache_ != nullptr) cache_->release(slot_);
}

std::uint32_t Lease::expert() const noexcept {
  return cache_->slots_[slot_].expert;
}

const std::byte* Lease::part(std::size_t part) const noexcept {
  return cache_->part_data(cache_->slots_[slot_], part);
}

UnitCache::UnitCache(const gguf::ModelFile& model_file, const UnitMap& map, const Placement& placement,
                     CachePolicy policy, WeightStore& store, std::uint64_t (*clock)() noexcept)
    : model_file_(model_file), map_(map), store_(store), clock_(clock) {
  SLUICE_CHECK(placement.slots_per_layer.size() == map.layers.size());
  std::uint64_t bytes = 0;
  std::size_t n_slots = placement.n_transit, n_units = 0, max_experts = 0;
  for (std::size_t i = 0; i < map.layers.size(); ++i) {
    bytes += placement.slots_per_layer[i] * map.layers[i].slot_bytes;
    n_slots += placement.slots_per_layer[i];
    n_units += map.layers[i].n_experts;
    max_experts = std::max<std::size_t>(max_experts, map.layers[i].n_experts);
  }
  planned_own_bytes_ = bytes;
  transit_bytes_ = placement.n_transit * placement.transit_slot_bytes;
  transit_is_spare_ = placement.transit_is_spare;
  slabs_ = platform::MappedRegion::allocate(bytes + transit_bytes_, /*prefault=*/false);
  slots_.resize(n_slots);
  layer_statistics_.resize(map.layers.size());
  slot_of_.assign(n_units, k_no_slot);
  std::uint64_t offset = 0;
  std::uint32_t slot_idx = 0;
  std::size_t base = 0;
  for (std::size_t i = 0; i < map.layers.size(); ++i) {
    first_slot_.push_back(slot_idx);
    layer_base_.push_back(base);
    base += map.layers[i].n_experts;
    for (std::uint32_t n = 0; n < placement.slots_per_layer[i]; ++n, ++slot_idx) {
      slots_[slot_idx].data = slabs_.data() + offset;
      offset += map.layers[i].slot_bytes;
    }
    policies_.emplace_back(policy, map.layers[i].n_experts);
  }
  first_slot_.push_back(slot_idx);
  first_transit_ = slot_idx;
  for (std::uint32_t n = 0; n < placement.n_transit; ++n, ++slot_idx) {
    slots_[slot_idx].data = slabs_.data() + offset;
    slots_[slot_idx].transit = true;
    offset += placement.transit_slot_bytes;
  }
  for (Slot& slot : slots_) slot.state = SlotState::retired;
  n_retired_ = slots_.size();
  if (placement.n_transit != 0 && !transit_is_spare_) use_transit();
  max_in_flight_ = std::min(n_slots, k_max_units_in_flight);
  pending_.reserve(max_experts);
  waiting_.reserve(max_experts);
  ready_.reserve(max_experts);
  guesses_.reserve(max_experts);
}

UnitCache::~UnitCache() {
  abandon();
  store_.queue().cancel_speculative();
  // The slabs must outlive every read that is under way.
  try {
    while (n_in_flight_ != 0) complete(1);
  } catch (const Error&) {  // The queue has failed; no read is under way then.
  }
}

void UnitCache::begin(std::uint32_t layer_idx, std::span<const Want> wants, Admission admission,
                      std::uint64_t now) {
  abandon();
  const int index = map_.index_of_layer[layer_idx];
  SLUICE_CHECK(index >= 0);
  guesses_.clear();
  const std::uint64_t start_ns = clock_();
  observe_drive(static_cast<std::uint32_t>(index), admission, start_ns);
  fetch_layer_ = static_cast<std::uint32_t>(index);
  judge_guesses(wants);
  asked_admission_ = admission;
  admission_ = pass_admission(admission, wants.size(), n_layer_slots(fetch_layer_));
  now_ = now;
  pending_.clear();
  next_pending_ = 0;
  waiting_.clear();
  ready_.clear();
  next_ready_ = 0;
  // Hits are leased before any victim is chosen, so that a miss cannot evict what this very step wants.
  for (const Want& want : wants) {
    policies_[fetch_layer_].touch(want.expert, now, want.n_rows);
    const std::int32_t slot_idx = slot_of(fetch_layer_, want.expert);
    if (slot_idx == k_no_slot) {
      pending_.push_back(want.expert);
      continue;
    }
    Slot& slot = slots_[static_cast<std::size_t>(slot_idx)];
    ++slot.n_leases;
    const bool is_ready = slot.state == SlotState::ready;
    slot.early = !is_ready;
    (is_ready ? ready_ : waiting_).push_back(static_cast<std::uint32_t>(slot_idx));
    LayerStatistics& counters = layer_statistics_[fetch_layer_];
    if (was_read_ahead(slot, true)) {
      ++counters.n_ahead_used;
      if (!is_ready) promote(static_cast<std::uint32_t>(slot_idx));
    } else {
      ++(is_ready ? statistics_.n_hits : statistics_.n_joins);
      ++(is_ready ? counters.n_hits : counters.n_joins);
      if (std::exchange(slot.preloading, false)) {
        --n_preloading_;
        promote(static_cast<std::uint32_t>(slot_idx));
      }
    }
  }
  if (admission_ != admission) policies_[fetch_layer_].order_by_score(pending_, now);
  statistics_.n_misses += pending_.size();
  layer_statistics_[fetch_layer_].n_misses += pending_.size();
  // Guesses that proved wrong and have not reached the drive must not hold up what is wanted.
  store_.queue().cancel_speculative();
  complete(0);
  issue_pending();
  demand_end_ns_ = 0;
  demand_read_ = !waiting_.empty() || next_pending_ != pending_.size();
  if (!demand_read_) end_demand(start_ns);
}

void UnitCache::observe_drive(std::uint32_t layer, Admission admission, std::uint64_t now_ns) noexcept {
  const bool decodes = admission == Admission::always && asked_admission_ == Admission::always;
  if (demand_end_ns_ != 0 && decodes && layer == fetch_layer_ + 1)
    gate_.observe_idle(now_ns - demand_end_ns_, demand_read_);
  const std::uint64_t busy_ns = store_.queue().statistics().busy_ns;
  if (busy_ns == seen_busy_ns_) return;
  gate_.observe_read(n_units_read_, busy_ns - seen_busy_ns_);
  seen_busy_ns_ = busy_ns;
  n_units_read_ = 0;
}

void UnitCache::look_ahead(std::uint32_t layer_idx, std::span<const std::uint16_t> experts,
                           std::optional<std::size_t> max_units) {
  const int index = map_.index_of_layer[layer_idx];
  if (index < 0) return;
  guess_layer_ = static_cast<std::uint32_t>(index);
  max_guesses_ = max_units;
  guesses_.assign(experts.begin(), experts.end());
  if (demand_end_ns_ != 0) issue_ahead();
}

void UnitCache::issue_ahead() {
  std::array<std::uint8_t, LookAheadGate::k_max_units> ranks;
  std::size_t n = 0;
  for (std::size_t rank = 0; rank < guesses_.size() && n < ranks.size(); ++rank) {
    if (slot_of(guess_layer_, guesses_[rank]) != k_no_slot) continue;
    ranks[n] = static_cast<std::uint8_t>(std::min<std::size_t>(rank, UINT8_MAX));
    missing_guesses_[n] = {guesses_[rank], ranks[n]};
    ++n;
  }
  n_missing_guesses_ = n;
  const std::size_t allowed =
      std::min(n, max_guesses_ ? *max_guesses_ : gate_.allowance(std::span(ranks).first(n), demand_read_));
  for (std::size_t i = 0; i < allowed && n_in_flight_ < max_in_flight_; ++i) {
    const std::int32_t slot_idx = lowest_slot(guess_layer_, guesses_);
    if (slot_idx == k_no_slot) break;
    const auto idx = static_cast<std::uint32_t>(slot_idx);
    empty_slot(idx);
    slots_[idx].ahead = true;
    ++statistics_.n_ahead;
    start_read(idx, guess_layer_, missing_guesses_[i].expert, storage::Priority::speculative);
  }
  guesses_.clear();
}

void UnitCache::judge_guesses(std::span<const Want> wants) noexcept {
  for (std::size_t i = 0; i < n_missing_guesses_ && guess_layer_ == fetch_layer_; ++i) {
    const MissingGuess& guess = missing_guesses_[i];
    gate_.observe_guess(guess.rank, std::any_of(wants.begin(), wants.end(), [&](const Want& want) {
                          return want.expert == guess.expert;
                        }));
  }
  n_missing_guesses_ = 0;
}

void UnitCache::end_demand(std::uint64_t now_ns) {
  demand_end_ns_ = now_ns;
  issue_ahead();
}

std::int32_t UnitCache::lowest_slot(std::uint32_t layer, std::span<const std::uint16_t> keep) const {
  std::int32_t victim = k_no_slot;
  double victim_score = 0;
  for (std::uint32_t i = first_slot_[layer]; i < first_slot_[layer + 1]; ++i) {
    const Slot& slot = slots_[i];
    if (slot.state == SlotState::free) return static_cast<std::int32_t>(i);
    if (slot.state != SlotState::ready || slot.n_leases != 0) continue;
    if (std::find(keep.begin(), keep.end(), slot.expert) != keep.end()) continue;
    const double score = policies_[layer].score(slot.expert, now_);
    if (victim == k_no_slot || score < victim_score) {
      victim = static_cast<std::int32_t>(i);
      victim_score = score;
    }
  }
  return victim;
}

bool UnitCache::was_read_ahead(Slot& slot, bool used) noexcept {
  if (!slot.ahead) return false;
  slot.ahead = false;
  ++(used ? statistics_.n_ahead_used : statistics_.n_ahead_wasted);
  return true;
}

std::int32_t UnitCache::choose_slot(std::uint32_t layer, std::uint32_t expert) {
  const std::int32_t own = lowest_slot(layer, {});
  if (own != k_no_slot) {
    const Slot& slot = slots_[static_cast<std::size_t>(own)];
    if (slot.state == SlotState::free || may_displace(admission_, policies_[layer].score(slot.expert, now_),
                                                      policies_[layer].score(expert, now_)))
      return own;
  }
  for (std::uint32_t i = first_transit_; i < slots_.size(); ++i) {
    if (slots_[i].state == SlotState::free) return static_cast<std::int32_t>(i);
  }
  return k_no_slot;
}

void UnitCache::issue_pending() {
  while (next_pending_ < pending_.size() && n_in_flight_ < max_in_flight_) {
    const std::uint32_t expert = pending_[next_pending_];
    const std::int32_t slot_idx = choose_slot(fetch_layer_, expert);
    if (slot_idx == k_no_slot) return;
    ++next_pending_;
    const auto idx = static_cast<std::uint32_t>(slot_idx);
    empty_slot(idx);
    start_read(idx, fetch_layer_, expert, storage::Priority::demand);
    ++slots_[idx].n_leases;
    waiting_.push_back(idx);
  }
}

void UnitCache::start_read(std::uint32_t slot_idx, std::uint32_t layer, std::uint32_t expert,
                           storage::Priority priority) {
  Slot& slot = slots_[slot_idx];
  const LayerUnits& units = map_.layers[layer];
  slot.layer = layer;
  slot.expert = expert;
  slot.state = SlotState::reading;
  slot.n_reading = static_cast<std::uint8_t>(units.n_parts());
  slot.error = 0;
  slot.early = false;
  slot_of(layer, expert) = static_cast<std::int32_t>(slot_idx);
  std::array<storage::ReadRequest, k_max_unit_parts> requests;
  for (std::size_t part = 0; part < units.n_parts(); ++part) {
    const UnitPart& where = units.experts[expert][part];
    requests[part] = {&store_.file(where.shard_idx), where.offset_bytes,
                      units.shapes[part].bytes(),    slot.data + units.slot_offset[part],
                      request_id(slot_idx, part),    priority,
                      store_.copy(where.shard_idx)};
  }
  ++n_in_flight_;
  store_.queue().submit(std::span(requests).first(units.n_parts()));
}

void UnitCache::promote(std::uint32_t slot_idx) {
  for (std::size_t part = 0; part < map_.layers[slots_[slot_idx].layer].n_parts(); ++part)
    store_.queue().promote(request_id(slot_idx, part));
}

void UnitCache::complete(std::size_t min_count) {
  std::array<storage::ReadResult, 64> results;
  const std::size_t n = store_.queue().wait(results, min_count);
  for (std::size_t i = 0; i < n; ++i) {
    const auto slot_idx = static_cast<std::uint32_t>(results[i].id / k_max_unit_parts);
    Slot& slot = slots_[slot_idx];
    if (results[i].error != 0 && slot.error == 0) {
      slot.error = results[i].error;
      slot.error_part = static_cast<std::uint8_t>(results[i].id % k_max_unit_parts);
      slot.error_offset = results[i].error_offset;
    }
    if (--slot.n_reading != 0) continue;
    --n_in_flight_;
    ++n_units_read_;
    if (std::exchange(slot.preloading, false)) {
      --n_preloading_;
      if (slot.error == ECANCELED && next_preload_ != 0) {
        // Demand came first; its turn comes again.
        preload_[--next_preload_] = {slot.layer, slot.expert};
        --statistics_.n_preloaded;
      }
    }
    if (slot.error == 0) refuse_zeros(slot);
    slot.state = slot.error == 0 ? SlotState::ready : SlotState::failed;
    // Nobody waits for it any more: keep it if it has a place of its own.
    if (slot.n_leases == 0 && (slot.transit || slot.state == SlotState::failed)) empty_slot(slot_idx);
  }
}

std::size_t UnitCache::next(std::span<Lease> out) {
  SLUICE_CHECK(!out.empty());
  for (;;) {
    // Slots released since the last call may serve experts that found none.
    issue_pending();
    // Takes in what has arrived without blocking, so that arrivals join this batch.
    if (!waiting_.empty()) complete(0);
    for (std::size_t i = 0; i < waiting_.size();) {
      const std::uint32_t slot_idx = waiting_[i];
      if (slots_[slot_idx].state == SlotState::reading) {
        ++i;
        continue;
      }
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      if (slots_[slot_idx].state == SlotState::failed && slots_[slot_idx].early) {
        // Cancelled as a guess before this fetch wanted it, or failed as one or for an earlier fetch, which
        // has told of it: demanded now.
        pending_.push_back(slots_[slot_idx].expert);
        release(slot_idx);
        issue_pending();
        continue;
      }
      if (waiting_.empty() && next_pending_ == pending_.size()) end_demand(clock_());
      if (slots_[slot_idx].state == SlotState::failed) fail_unit(slot_idx);
      ready_.push_back(slot_idx);
    }
    if (next_ready_ < ready_.size()) break;
    ready_.clear();
    next_ready_ = 0;
    if (waiting_.empty() && next_pending_ == pending_.size()) return 0;
    // Either this fetch's reads are under way, or reads nobody waits for hold the slots it needs.
    SLUICE_CHECK(n_in_flight_ != 0);
    const std::uint64_t start = clock_();
    complete(1);
    statistics_.stall_ns += clock_() - start;
  }
  // The drive would be idle while what is handed out is computed.
  if (waiting_.empty() && next_pending_ == pending_.size()) preload_some();
  std::size_t n = 0;
  while (n < out.size() && next_ready_ < ready_.size()) out[n++] = Lease(this, ready_[next_ready_++]);
  return n;
}

void UnitCache::abandon() noexcept {
  for (std::uint32_t slot_idx : waiting_) release(slot_idx);
  for (std::size_t i = next_ready_; i < ready_.size(); ++i) release(ready_[i]);
  waiting_.clear();
  ready_.clear();
  next_ready_ = 0;
  pending_.clear();
  next_pending_ = 0;
}

const std::byte* UnitCache::part_data(const Slot& slot, std::size_t part) const noexcept {
  const LayerUnits& layer = map_.layers[slot.layer];
  const UnitPart& where = layer.experts[slot.expert][part];
  const std::uint32_t alignment = store_.file(where.shard_idx).alignment_bytes();
  return slot.data + layer.slot_offset[part] + storage::place_in_window(where.offset_bytes, alignment);
}

void UnitCache::refuse_zeros(Slot& slot) const noexcept {
  constexpr std::size_t k_max_places = 4;  // Of each part: a unit's read takes a thousand times as long.
  const LayerUnits& layer = map_.layers[slot.layer];
  for (std::size_t part = 0; part < layer.n_parts(); ++part) {
    const std::span data(part_data(slot, part), layer.shapes[part].bytes());
    const auto zeros = find_zeros(data, k_max_places);
    if (!zeros) continue;
    slot.error = k_zeros;
    slot.error_part = static_cast<std::uint8_t>(part);
    slot.error_offset = layer.experts[slot.expert][part].offset_bytes + zeros->offset_bytes;
    slot.zero_bytes = zeros->bytes;
    return;
  }
}

void UnitCache::fail_unit(std::uint32_t slot_idx) {
  const Slot slot = slots_[slot_idx];
  release(slot_idx);
  abandon();
  const LayerUnits& layer = map_.layers[slot.layer];
  const UnitPart& where = layer.experts[slot.expert][slot.error_part];
  const std::string name = unit_tensor_name(model_file_, layer, slot.expert, slot.error_part);
  const std::string& path = store_.file(where.shard_idx).path();
  if (slot.error == k_zeros) fail_zeros(path, name, slot.error_offset, slot.zero_bytes);
  base::fail(ErrorCode::io, "{}: reading tensor {} failed at offset {}: {}; check the drive and the file",
             path, name, slot.error_offset, std::strerror(slot.error));
}

void UnitCache::release(std::uint32_t slot_idx) noexcept {
  Slot& slot = slots_[slot_idx];
  SLUICE_CHECK(slot.n_leases != 0);
  if (--slot.n_leases != 0 || slot.state == SlotState::reading) return;
  if (slot.transit || slot.state == SlotState::failed) empty_slot(slot_idx);
}

void UnitCache::empty_slot(std::uint32_t slot_idx) noexcept {
  Slot& slot = slots_[slot_idx];
  SLUICE_CHECK(slot.state != SlotState::reading && slot.n_leases == 0);
  was_read_ahead(slot, false);
  if (slot.state != SlotState::free) slot_of(slot.layer, slot.expert) = k_no_slot;
  slot.state = SlotState::free;
}

std::size_t UnitCache::n_leased() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.n_leases != 0; }));
}

void UnitCache::queue_preload(std::vector<Unit> units) {
  preload_ = std::move(units);
  next_preload_ = 0;
}

void UnitCache::preload_some() {
  // As much as demand may find under way before it.
  constexpr std::size_t k_max_preloading = 2;
  if (n_in_flight_ != n_preloading_) return;  // Look-ahead knows better what is wanted next.
  while (next_preload_ < preload_.size() && n_preloading_ < k_max_preloading &&
         n_in_flight_ < max_in_flight_) {
    const Unit unit = preload_[next_preload_++];
    if (slot_of(unit.layer, unit.expert) != k_no_slot) continue;
    for (std::uint32_t i = first_slot_[unit.layer]; i < first_slot_[unit.layer + 1]; ++i) {
      if (slots_[i].state != SlotState::free) continue;
      start_read(i, unit.layer, unit.expert, storage::Priority::speculative);
      slots_[i].preloading = true;
      ++n_preloading_;
      ++statistics_.n_preloaded;
      break;
    }
  }
}

void UnitCache::preload_while(base::FunctionRef<bool()> may_go_on) {
  while (may_go_on()) {
    preload_some();
    if (n_in_flight_ == 0) return;
    complete(1);
  }
}

void UnitCache::preload(LoadStep step) {
  const auto complete_one = [&] {
    complete(1);
    step();
  };
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    for (std::uint32_t expert = 0; expert < map_.layers[layer].n_experts; ++expert) {
      if (slot_of(layer, expert) != k_no_slot) continue;
      std::uint32_t slot_idx = first_slot_[layer];
      while (slot_idx < first_slot_[layer + 1] && slots_[slot_idx].state != SlotState::free) ++slot_idx;
      if (slot_idx == first_slot_[layer + 1]) break;
      while (n_in_flight_ >= max_in_flight_) complete_one();
      // Nothing else is read now, and what has not begun can be dropped.
      start_read(slot_idx, layer, expert, storage::Priority::speculative);
    }
  }
  while (n_in_flight_ != 0) complete_one();
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    for (std::uint32_t expert = 0; expert < map_.layers[layer].n_experts; ++expert) {
      if (slot_of(layer, expert) != k_no_slot) continue;
      // A failed read emptied its slot; reading it again on its own gives the error its place.
      if (n_layer_slots(layer) < map_.layers[layer].n_experts) continue;
      const Want want{expert, 0};
      begin(map_.layers[layer].layer_idx, {&want, 1}, Admission::always, 0);
      std::array<Lease, 1> lease;
      while (next(lease) != 0) lease[0] = Lease();
    }
  }
}

}  // namespace sluice::residency
