#include "residency/unit_cache.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "sluice/error.hpp"

namespace sluice::residency {
namespace {

std::vector<SlotTable::LayerSize> layer_sizes(const UnitMap& map, const Placement& placement) {
  SLUICE_CHECK(placement.slots_per_layer.size() == map.layers.size());
  std::vector<SlotTable::LayerSize> sizes;
  for (std::size_t i = 0; i < map.layers.size(); ++i)
    sizes.push_back({placement.slots_per_layer[i], map.layers[i].n_experts});
  return sizes;
}

}  // namespace

Lease::Lease(Lease&& other) noexcept : cache_(std::exchange(other.cache_, nullptr)), slot_(other.slot_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    if (cache_ != nullptr) cache_->table_.release(slot_);
    cache_ = std::exchange(other.cache_, nullptr);
    slot_ = other.slot_;
  }
  return *this;
}

Lease::~Lease() {
  if (cache_ != nullptr) cache_->table_.release(slot_);
}

std::uint32_t Lease::expert() const noexcept {
  return cache_->table_[slot_].unit.expert;
}

const std::byte* Lease::part(std::size_t part) const noexcept {
  return cache_->reader_.part(cache_->memory(slot_), cache_->table_[slot_].unit, part);
}

void Lease::release_after(base::Ticket ticket) {
  SLUICE_CHECK(cache_ != nullptr && (ticket == 0 || cache_->device_ != nullptr));
  cache_->table_.release_after(slot_, ticket);
  cache_ = nullptr;
}

UnitCache::UnitCache(const gguf::ModelFile& model_file, const UnitMap& map, const Placement& placement,
                     CachePolicy policy, WeightStore& store, std::uint64_t (*clock)() noexcept,
                     base::TicketSource* device)
    : map_(map),
      clock_(clock),
      device_(device),
      table_(layer_sizes(map, placement), placement.n_transit, policy),
      reader_(model_file, map, store, table_.size()),
      layer_statistics_(map.layers.size()) {
  offset_.reserve(table_.size());
  std::size_t max_experts = 0;
  for (std::size_t i = 0; i < map.layers.size(); ++i) {
    for (std::uint32_t n = 0; n < placement.slots_per_layer[i]; ++n) {
      offset_.push_back(planned_own_bytes_);
      planned_own_bytes_ += map.layers[i].slot_bytes;
    }
    max_experts = std::max<std::size_t>(max_experts, map.layers[i].n_experts);
  }
  for (std::uint32_t n = 0; n < placement.n_transit; ++n) {
    offset_.push_back(planned_own_bytes_ + transit_bytes_);
    transit_bytes_ += placement.transit_slot_bytes;
  }
  transit_is_spare_ = placement.transit_is_spare;
  slabs_ = platform::MappedRegion::allocate(planned_own_bytes_ + transit_bytes_, /*prefault=*/false);
  if (placement.n_transit != 0 && !transit_is_spare_) table_.use_transit();
  pending_.reserve(max_experts);
  waiting_.reserve(max_experts);
  ready_.reserve(max_experts);
  only_if_better_.resize(max_experts);
  guesses_.reserve(max_experts);
}

UnitCache::~UnitCache() {
  abandon();
  reader_.cancel_speculative();
  // The slabs must outlive every read that is under way, and what a device does with them.
  try {
    while (reader_.n_reading() != 0) complete(1);
  } catch (const Error&) {  // The queue has failed; no read is under way then.
  }
  wait_for_device();
}

CacheStatistics UnitCache::statistics() const noexcept {
  CacheStatistics statistics = statistics_;
  statistics.n_ahead_wasted = table_.n_wasted();
  return statistics;
}

void UnitCache::begin(std::uint32_t layer_idx, std::span<const Want> wants, std::uint64_t now) {
  abandon();
  failures_.clear();
  const int index = map_.index_of_layer[layer_idx];
  SLUICE_CHECK(index >= 0);
  const std::uint64_t start_ns = clock_();
  const auto n_decoding = static_cast<std::size_t>(std::count_if(
      wants.begin(), wants.end(), [](const Want& want) { return want.admission == Admission::always; }));
  observe_drive(static_cast<std::uint32_t>(index), n_decoding != 0, start_ns);
  fetch_layer_ = static_cast<std::uint32_t>(index);
  guesses_.judge(fetch_layer_, [wants](std::uint32_t expert) {
    return std::any_of(wants.begin(), wants.end(),
                       [expert](const Want& want) { return want.expert == expert; });
  });
  decodes_ = n_decoding != 0;
  admission_ = pass_admission(Admission::always, n_decoding, n_layer_slots(fetch_layer_));
  now_ = now;
  LayerPolicy& policy = table_.policy(fetch_layer_);
  // Hits are leased before any victim is chosen, so that a miss cannot evict what this very step wants.
  for (const Want& want : wants) {
    policy.touch(want.expert, now, want.n_rows);
    const std::uint32_t slot = table_.find({fetch_layer_, want.expert});
    if (slot == SlotTable::k_none) {
      pending_.push_back(want.expert);
      only_if_better_[want.expert] = want.admission == Admission::if_better;
    } else if (join(slot)) {
      ready_.push_back(slot);
    } else {
      waiting_.push_back({slot, true});
    }
  }
  if (decodes_ && admission_ == Admission::if_better) policy.order_by_score(pending_, now);
  statistics_.n_misses += pending_.size();
  layer_statistics_[fetch_layer_].n_misses += pending_.size();
  // Guesses that proved wrong and have not reached the drive must not hold up what is wanted.
  reader_.cancel_speculative();
  complete(0);
  end_leases();
  issue_pending();
  demand_end_ns_ = 0;
  demand_read_ = !is_demand_over();
  if (!demand_read_) end_demand(start_ns);
}

/// Leases a unit that has a slot, and counts it; whether it is ready.
bool UnitCache::join(std::uint32_t slot) {
  const bool is_ready = table_[slot].state == SlotState::ready;
  LayerStatistics& counters = layer_statistics_[fetch_layer_];
  const ReadFor read_for = table_.want(slot);
  if (read_for == ReadFor::guess) {
    ++statistics_.n_ahead_used;
    ++counters.n_ahead_used;
  } else {
    ++(is_ready ? statistics_.n_hits : statistics_.n_joins);
    ++(is_ready ? counters.n_hits : counters.n_joins);
  }
  if (read_for == ReadFor::preload) --n_preloading_;
  if (!is_ready && read_for != ReadFor::demand) reader_.promote(slot);
  return is_ready;
}

void UnitCache::observe_drive(std::uint32_t layer, bool decodes, std::uint64_t now_ns) noexcept {
  LookAheadGate& gate = guesses_.gate();
  if (demand_end_ns_ != 0 && decodes && decodes_ && layer == fetch_layer_ + 1)
    gate.observe_idle(now_ns - demand_end_ns_, demand_read_);
  const UnitReader::Progress progress = reader_.take_progress();
  gate.observe_read(progress.n_units, progress.busy_ns);
}

void UnitCache::look_ahead(std::uint32_t layer_idx, std::span<const std::uint16_t> experts,
                           std::optional<std::size_t> max_units) {
  const int index = map_.index_of_layer[layer_idx];
  if (index < 0) return;
  guesses_.set(static_cast<std::uint32_t>(index), experts, max_units);
  if (demand_end_ns_ != 0) issue_ahead();
}

void UnitCache::end_demand(std::uint64_t now_ns) {
  demand_end_ns_ = now_ns;
  issue_ahead();
}

void UnitCache::issue_ahead() {
  const std::uint32_t layer = guesses_.layer();
  const auto is_cached = [&](std::uint32_t expert) {
    return table_.find({layer, expert}) != SlotTable::k_none;
  };
  for (const MissingGuess& guess : guesses_.choose(is_cached, demand_read_)) {
    if (!reader_.has_room()) break;
    const std::uint32_t slot = table_.lowest(layer, guesses_.experts(), now_);
    if (slot == SlotTable::k_none) break;
    ++statistics_.n_ahead;
    start_read(slot, {layer, guess.expert}, ReadFor::guess);
  }
  guesses_.forget();
}

void UnitCache::issue_pending() {
  while (next_pending_ < pending_.size() && reader_.has_room()) {
    const UnitId unit{fetch_layer_, pending_[next_pending_]};
    const std::uint32_t slot =
        table_.choose(unit, only_if_better_[unit.expert] ? Admission::if_better : admission_, now_);
    if (slot == SlotTable::k_none) return;
    ++next_pending_;
    start_read(slot, unit, ReadFor::demand);
    table_.want(slot);
    waiting_.push_back({slot, false});
  }
}

void UnitCache::start_read(std::uint32_t slot, UnitId unit, ReadFor read_for) {
  table_.fill(slot, unit, read_for);
  reader_.start(slot, unit, memory(slot),
                read_for == ReadFor::demand ? storage::Priority::demand : storage::Priority::speculative);
}

void UnitCache::complete(std::size_t min_parts) {
  for (const UnitReader::Done& done : reader_.wait(min_parts)) {
    if (table_[done.slot].read_for == ReadFor::preload) {
      --n_preloading_;
      if (done.outcome == UnitReader::Outcome::cancelled && next_preload_ != 0) {
        // Demand came first; its turn comes again.
        preload_[--next_preload_] = table_[done.slot].unit;
        --statistics_.n_preloaded;
      }
    }
    table_.finish(done.slot, done.outcome == UnitReader::Outcome::read);
  }
}

void UnitCache::end_leases() noexcept {
  if (device_ != nullptr) table_.end_leases([this](base::Ticket ticket) { return device_->is_done(ticket); });
}

void UnitCache::wait_for_device() noexcept {
  while (const base::Ticket ticket = table_.first_ticket()) {
    device_->wait(ticket);
    end_leases();
  }
}

std::size_t UnitCache::next(std::span<Lease> out) {
  SLUICE_CHECK(!out.empty());
  for (;;) {
    // Slots released since the last call may serve experts that found none.
    end_leases();
    issue_pending();
    // Takes in what has arrived without blocking, so that arrivals join this batch.
    if (!waiting_.empty()) complete(0);
    sort_arrivals();
    if (next_ready_ < ready_.size()) break;
    ready_.clear();
    next_ready_ = 0;
    if (is_demand_over()) return 0;
    wait_for_any();
  }
  // The drive would be idle while what is handed out is computed.
  if (is_demand_over()) preload_some();
  std::size_t n = 0;
  while (n < out.size() && next_ready_ < ready_.size()) out[n++] = Lease(this, ready_[next_ready_++]);
  return n;
}

/// Of what the fetch waits for: what is ready, what failed, and what must be read again.
void UnitCache::sort_arrivals() {
  for (std::size_t i = 0; i < waiting_.size();) {
    const Awaited awaited = waiting_[i];
    const SlotTable::Slot& slot = table_[awaited.slot];
    if (slot.state == SlotState::reading) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (slot.state == SlotState::failed && awaited.early) {
      // Cancelled as a guess before this fetch wanted it, or failed as one or for an earlier fetch, which
      // has told of it: demanded now.
      pending_.push_back(slot.unit.expert);
      table_.release(awaited.slot);
      issue_pending();
      continue;
    }
    if (slot.state == SlotState::failed) {
      failures_.push_back(reader_.failure(awaited.slot));
      table_.release(awaited.slot);
      issue_pending();
    } else {
      ready_.push_back(awaited.slot);
    }
    if (is_demand_over()) end_demand(clock_());
  }
}

void UnitCache::wait_for_any() {
  const std::uint64_t start_ns = clock_();
  if (reader_.n_reading() != 0) {
    // This fetch's reads are under way, or reads nobody waits for hold the slots it needs.
    complete(1);
  } else {
    // Or the work of a device does.
    SLUICE_CHECK(table_.first_ticket() != 0);
    device_->wait(table_.first_ticket());
  }
  statistics_.stall_ns += clock_() - start_ns;
}

void UnitCache::require_all() const {
  if (!failures_.empty()) throw Error(failures_.front().code, failures_.front().message);
}

void UnitCache::abandon() noexcept {
  for (const Awaited& awaited : waiting_) table_.release(awaited.slot);
  for (std::size_t i = next_ready_; i < ready_.size(); ++i) table_.release(ready_[i]);
  waiting_.clear();
  ready_.clear();
  next_ready_ = 0;
  pending_.clear();
  next_pending_ = 0;
}

}  // namespace sluice::residency
