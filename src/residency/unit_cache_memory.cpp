// How a unit cache takes memory, gives it back and takes it again. What it does with its slots is in
// unit_cache.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/units.hpp"
#include "residency/unit_cache.hpp"

namespace sluice::residency {

void UnitCache::fill_slots(MayTake may_take) {
  const std::uint64_t most = std::clamp(planned_own_bytes_ / 64, base::k_mib, 128 * base::k_mib);
  while (own_bytes_ < planned_own_bytes_) {
    const std::uint64_t before = own_bytes_;
    const std::uint64_t step = std::min(most, planned_own_bytes_ - own_bytes_);
    if (!may_take(step)) break;
    // A step may be smaller than a slot.
    for (std::uint64_t wanted = before + step; own_bytes_ == before && wanted < planned_own_bytes_ + step;
         wanted += step)
      set_slots(share_of(std::min(wanted, planned_own_bytes_)));
    if (own_bytes_ == before) break;
  }
  // Not all could be had: what is here makes room for the slots that the others pass through.
  if (own_bytes_ < planned_own_bytes_ && transit_is_spare_) {
    set_slots(share_of(own_bytes_ - std::min(own_bytes_, transit_bytes_)));
    slabs_.restore_pages(planned_own_bytes_, transit_bytes_);
    use_transit();
  }
}

std::uint64_t UnitCache::own_slot_bytes() const noexcept {
  if (transit_is_spare_ && !is_streaming_) return planned_own_slot_bytes();
  return transit_bytes_ == 0 ? 0 : own_bytes_;
}

std::uint64_t UnitCache::planned_own_slot_bytes() const noexcept {
  if (transit_is_spare_) return planned_own_bytes_ - std::min(planned_own_bytes_, transit_bytes_);
  return transit_bytes_ == 0 ? 0 : planned_own_bytes_;
}

void UnitCache::resize(std::uint64_t bytes) {
  const std::uint64_t planned = planned_own_slot_bytes();
  if (planned == 0) return;
  bytes = std::min(bytes, planned);
  const bool keeps_all = transit_is_spare_ && bytes == planned;
  const std::vector<std::uint32_t> n_wanted = share_of(keeps_all ? planned_own_bytes_ : bytes);
  if (is_streaming_ != keeps_all && has_slots(n_wanted)) return;
  abandon();
  while (n_in_flight_ != 0) complete(1);
  ++(bytes < own_slot_bytes() ? statistics_.n_shrinks : statistics_.n_grows);
  if (keeps_all && is_streaming_) drop_transit();
  set_slots(n_wanted);
  if (own_bytes_ < planned_own_bytes_ && !is_streaming_) {
    // Where the system refused memory for the last slots, others make room for transit again.
    if (keeps_all) set_slots(share_of(std::min(own_bytes_, planned)));
    // Should it refuse these, too, pages come one by one as reads touch them.
    slabs_.restore_pages(planned_own_bytes_, transit_bytes_);
    use_transit();
  }
}

void UnitCache::give_back(std::uint64_t bytes) {
  if (planned_own_slot_bytes() == 0) return;
  // What is read for nobody yet can be read again, or never.
  store_.queue().cancel_speculative();
  complete(0);
  const std::uint64_t for_transit = is_streaming_ ? 0 : transit_bytes_;
  std::uint64_t idle_bytes = 0;
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer)
    idle_bytes += n_idle_slots(layer) * map_.layers[layer].slot_bytes;
  if (idle_bytes == 0 || idle_bytes < for_transit) return;
  ++statistics_.n_shrinks;
  const double share =
      std::min(1.0, static_cast<double>(bytes + for_transit) / static_cast<double>(idle_bytes));
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    const auto n = static_cast<std::uint32_t>(std::ceil(n_idle_slots(layer) * share));
    resize_layer(layer, n_layer_slots(layer) - n);
  }
  if (is_streaming_) return;
  slabs_.restore_pages(planned_own_bytes_, transit_bytes_);
  use_transit();
}

std::vector<std::uint32_t> UnitCache::share_of(std::uint64_t bytes) const {
  const double share =
      planned_own_bytes_ == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(planned_own_bytes_);
  std::vector<std::uint32_t> n_slots;
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    const std::uint32_t n_planned = first_slot_[layer + 1] - first_slot_[layer];
    n_slots.push_back(static_cast<std::uint32_t>(n_planned * share));
    bytes -= std::min(bytes, n_slots.back() * map_.layers[layer].slot_bytes);
  }
  // What is left is less than one slot of every layer: one more for some.
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    const std::uint32_t n_planned = first_slot_[layer + 1] - first_slot_[layer];
    if (n_slots[layer] == n_planned || map_.layers[layer].slot_bytes > bytes) continue;
    ++n_slots[layer];
    bytes -= map_.layers[layer].slot_bytes;
  }
  return n_slots;
}

bool UnitCache::has_slots(std::span<const std::uint32_t> n_wanted) const noexcept {
  for (std::uint32_t layer = 0; layer < n_wanted.size(); ++layer) {
    if (n_layer_slots(layer) != n_wanted[layer]) return false;
  }
  return true;
}

void UnitCache::set_slots(std::span<const std::uint32_t> n_wanted) {
  // Layers that give go first, so that the sum never exceeds both the old and the new one.
  for (const bool gives : {true, false}) {
    for (std::uint32_t layer = 0; layer < n_wanted.size(); ++layer) {
      if ((n_wanted[layer] < n_layer_slots(layer)) == gives) resize_layer(layer, n_wanted[layer]);
    }
  }
}

void UnitCache::take_transit(MayTake may_take) {
  if (is_streaming_) take_memory(slabs_, planned_own_bytes_, transit_bytes_, may_take);
}

void UnitCache::use_transit() noexcept {
  for (std::uint32_t i = first_transit_; i < slots_.size(); ++i) slots_[i].state = SlotState::free;
  n_retired_ -= slots_.size() - first_transit_;
  is_streaming_ = true;
}

void UnitCache::drop_transit() noexcept {
  for (std::uint32_t i = first_transit_; i < slots_.size(); ++i) {
    SLUICE_CHECK(slots_[i].state == SlotState::free);
    slots_[i].state = SlotState::retired;
  }
  slabs_.release_pages(planned_own_bytes_, transit_bytes_);
  n_retired_ += slots_.size() - first_transit_;
  is_streaming_ = false;
}

// The retired slots are the last ones of a layer, so that what is given back is contiguous: memory of a huge
// page is free only when all of it is. Units worth keeping move to slots that stay.
void UnitCache::resize_layer(std::uint32_t layer, std::uint32_t n_wanted) {
  const std::uint64_t bytes = map_.layers[layer].slot_bytes;
  const std::uint32_t first = first_slot_[layer], end = first_slot_[layer + 1];
  const auto offset_of = [&](std::uint32_t idx) {
    return static_cast<std::size_t>(slots_[idx].data - slabs_.data());
  };
  std::uint32_t n_used = 0;
  while (first + n_used < end && slots_[first + n_used].state != SlotState::retired) ++n_used;
  if (n_used < n_wanted) {
    const std::uint32_t n = n_wanted - n_used;
    if (!slabs_.restore_pages(offset_of(first + n_used), n * bytes)) return;
    for (std::uint32_t i = 0; i < n; ++i) slots_[first + n_used + i].state = SlotState::free;
    n_retired_ -= n;
    own_bytes_ += n * bytes;
    return;
  }
  if (n_used == n_wanted) return;
  const std::uint32_t n = n_used - n_wanted;
  for (std::uint32_t idx = first + n_wanted; idx < first + n_used; ++idx) {
    if (slots_[idx].state == SlotState::ready) keep_elsewhere(idx, first, first + n_wanted);
    empty_slot(idx);
    slots_[idx].state = SlotState::retired;
  }
  slabs_.release_pages(offset_of(first + n_wanted), n * bytes);
  n_retired_ += n;
  own_bytes_ -= n * bytes;
}

void UnitCache::keep_elsewhere(std::uint32_t from_idx, std::uint32_t first, std::uint32_t end) {
  Slot& from = slots_[from_idx];
  const LayerPolicy& policy = policies_[from.layer];
  std::uint32_t worst = end;
  double worst_score = 0;
  for (std::uint32_t i = first; i < end; ++i) {
    if (slots_[i].n_leases != 0) continue;
    if (slots_[i].state != SlotState::free && slots_[i].state != SlotState::ready) continue;
    const double score = slots_[i].state == SlotState::free ? -1.0 : policy.score(slots_[i].expert, now_);
    if (worst == end || score < worst_score) {
      worst = i;
      worst_score = score;
    }
  }
  if (worst == end || worst_score >= policy.score(from.expert, now_)) return;
  empty_slot(worst);
  Slot& to = slots_[worst];
  std::memcpy(to.data, from.data, map_.layers[from.layer].slot_bytes);
  const Slot was = std::exchange(from, Slot{from.data});
  std::byte* const data = to.data;
  to = was;
  to.data = data;
  slot_of(to.layer, to.expert) = static_cast<std::int32_t>(worst);
}

std::uint32_t UnitCache::n_idle_slots(std::uint32_t layer) const noexcept {
  const std::uint32_t first = first_slot_[layer], end = first + n_layer_slots(layer);
  std::uint32_t begin = end;
  while (begin > first && slots_[begin - 1].n_leases == 0 && slots_[begin - 1].state != SlotState::reading)
    --begin;
  return end - begin;
}

std::uint32_t UnitCache::n_layer_slots(std::uint32_t layer) const noexcept {
  std::uint32_t n = 0;
  for (std::uint32_t i = first_slot_[layer]; i < first_slot_[layer + 1]; ++i)
    n += slots_[i].state != SlotState::retired;
  return n;
}

}  // namespace sluice::residency
