#include "residency/slot_table.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace sluice::residency {

SlotTable::SlotTable(std::span<const LayerSize> layers, std::uint32_t n_transit, CachePolicy policy) {
  std::uint32_t n_slots = 0;
  std::size_t n_units = 0;
  for (const LayerSize& layer : layers) {
    first_slot_.push_back(n_slots);
    unit_base_.push_back(n_units);
    n_slots += layer.n_slots;
    n_units += layer.n_experts;
    policies_.emplace_back(policy, layer.n_experts);
  }
  first_slot_.push_back(n_slots);
  n_used_.assign(layers.size(), 0);
  slots_.resize(n_slots + n_transit);
  slot_of_.assign(n_units, k_none);
}

std::size_t SlotTable::n_usable() const noexcept {
  std::size_t n = has_transit_ ? slots_.size() - first_transit() : 0;
  for (const std::uint32_t n_used : n_used_) n += n_used;
  return n;
}

std::size_t SlotTable::n_leased() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.n_leases != 0; }));
}

std::uint32_t SlotTable::lowest(std::uint32_t layer, std::span<const std::uint16_t> keep,
                                std::uint64_t now) const noexcept {
  std::uint32_t victim = k_none;
  double victim_score = 0;
  const std::uint32_t first = first_slot_[layer];
  for (std::uint32_t i = first; i < first + n_used_[layer]; ++i) {
    const Slot& slot = slots_[i];
    if (slot.state == SlotState::free) return i;
    if (slot.state != SlotState::ready || slot.n_leases != 0) continue;
    if (std::find(keep.begin(), keep.end(), slot.unit.expert) != keep.end()) continue;
    const double score = policies_[layer].score(slot.unit.expert, now);
    if (victim == k_none || score < victim_score) {
      victim = i;
      victim_score = score;
    }
  }
  return victim;
}

std::uint32_t SlotTable::choose(UnitId unit, Admission admission, std::uint64_t now) const noexcept {
  const std::uint32_t own = lowest(unit.layer, {}, now);
  if (own != k_none) {
    const LayerPolicy& policy = policies_[unit.layer];
    if (slots_[own].state == SlotState::free ||
        may_displace(admission, policy.score(slots_[own].unit.expert, now), policy.score(unit.expert, now)))
      return own;
  }
  for (std::uint32_t i = first_transit(); i < slots_.size(); ++i) {
    if (slots_[i].state == SlotState::free) return i;
  }
  return k_none;
}

std::uint32_t SlotTable::first_free(std::uint32_t layer) const noexcept {
  const std::uint32_t first = first_slot_[layer];
  for (std::uint32_t i = first; i < first + n_used_[layer]; ++i) {
    if (slots_[i].state == SlotState::free) return i;
  }
  return k_none;
}

void SlotTable::empty(std::uint32_t slot_idx) noexcept {
  Slot& slot = slots_[slot_idx];
  SLUICE_CHECK(slot.state != SlotState::retired && is_idle(slot));
  if (slot.state == SlotState::free) return;
  if (slot.read_for == ReadFor::guess) ++n_wasted_;
  slot_of(slot.unit) = k_none;
  slot = Slot{{}, 0, SlotState::free, ReadFor::demand};
}

void SlotTable::fill(std::uint32_t slot_idx, UnitId unit, ReadFor read_for) noexcept {
  empty(slot_idx);
  SLUICE_CHECK(find(unit) == k_none);
  slots_[slot_idx] = {unit, 0, SlotState::reading, read_for};
  slot_of(unit) = slot_idx;
}

void SlotTable::finish(std::uint32_t slot_idx, bool ok) noexcept {
  Slot& slot = slots_[slot_idx];
  SLUICE_CHECK(slot.state == SlotState::reading);
  slot.state = ok ? SlotState::ready : SlotState::failed;
  if (slot.read_for == ReadFor::preload) slot.read_for = ReadFor::demand;
  if (slot.n_leases == 0 && (!ok || is_transit(slot_idx))) empty(slot_idx);
}

ReadFor SlotTable::want(std::uint32_t slot_idx) noexcept {
  Slot& slot = slots_[slot_idx];
  SLUICE_CHECK(slot.state != SlotState::retired && slot.state != SlotState::free);
  ++slot.n_leases;
  return std::exchange(slot.read_for, ReadFor::demand);
}

void SlotTable::release(std::uint32_t slot_idx) noexcept {
  Slot& slot = slots_[slot_idx];
  SLUICE_CHECK(slot.n_leases != 0);
  if (--slot.n_leases != 0 || slot.state == SlotState::reading) return;
  if (is_transit(slot_idx) || slot.state == SlotState::failed) empty(slot_idx);
}

void SlotTable::release_after(std::uint32_t slot_idx, base::Ticket ticket) {
  if (ticket == 0) return release(slot_idx);
  SLUICE_CHECK(slots_[slot_idx].n_leases != 0);
  pending_.push_back({ticket, slot_idx});
}

void SlotTable::end_leases(base::FunctionRef<bool(base::Ticket)> is_done) noexcept {
  std::size_t n_kept = 0;
  for (const Pending& pending : pending_) {
    if (is_done(pending.ticket)) {
      release(pending.slot);
    } else {
      pending_[n_kept++] = pending;
    }
  }
  pending_.resize(n_kept);
}

base::Ticket SlotTable::first_ticket() const noexcept {
  base::Ticket first = 0;
  for (const Pending& pending : pending_) {
    if (first == 0 || pending.ticket < first) first = pending.ticket;
  }
  return first;
}

std::uint32_t SlotTable::n_idle(std::uint32_t layer) const noexcept {
  std::uint32_t n = 0;
  while (n < n_used_[layer] && is_idle(slots_[first_slot_[layer] + n_used_[layer] - 1 - n])) ++n;
  return n;
}

void SlotTable::grow(std::uint32_t layer, std::uint32_t n) noexcept {
  SLUICE_CHECK(n <= n_planned(layer) - n_used_[layer]);
  for (std::uint32_t i = 0; i < n; ++i)
    slots_[first_slot_[layer] + n_used_[layer] + i].state = SlotState::free;
  n_used_[layer] += n;
}

void SlotTable::shrink(std::uint32_t layer, std::uint32_t n, std::uint64_t now,
                       base::FunctionRef<void(std::uint32_t from, std::uint32_t to)> copy) {
  SLUICE_CHECK(n <= n_used_[layer]);
  const std::uint32_t first = first_slot_[layer], end = first + n_used_[layer] - n;
  for (std::uint32_t from = end; from < end + n; ++from) {
    SLUICE_CHECK(is_idle(slots_[from]));
    const std::uint32_t to = better_place(from, first, end, now);
    if (to != k_none) {
      empty(to);
      copy(from, to);
      slots_[to] = std::exchange(slots_[from], Slot{{}, 0, SlotState::free, ReadFor::demand});
      slot_of(slots_[to].unit) = to;
    }
    empty(from);
    slots_[from].state = SlotState::retired;
  }
  n_used_[layer] -= n;
}

std::uint32_t SlotTable::better_place(std::uint32_t from, std::uint32_t first, std::uint32_t end,
                                      std::uint64_t now) const noexcept {
  if (slots_[from].state != SlotState::ready) return k_none;
  const LayerPolicy& policy = policies_[slots_[from].unit.layer];
  std::uint32_t worst = k_none;
  double worst_score = 0;
  for (std::uint32_t i = first; i < end; ++i) {
    if (!is_idle(slots_[i])) continue;
    const double score = slots_[i].state == SlotState::free ? -1.0 : policy.score(slots_[i].unit.expert, now);
    if (worst == k_none || score < worst_score) {
      worst = i;
      worst_score = score;
    }
  }
  return worst == k_none || worst_score >= policy.score(slots_[from].unit.expert, now) ? k_none : worst;
}

void SlotTable::use_transit() noexcept {
  SLUICE_CHECK(!has_transit_);
  for (std::uint32_t i = first_transit(); i < slots_.size(); ++i) slots_[i].state = SlotState::free;
  has_transit_ = true;
}

void SlotTable::retire_transit() noexcept {
  SLUICE_CHECK(has_transit_);
  for (std::uint32_t i = first_transit(); i < slots_.size(); ++i) {
    SLUICE_CHECK(slots_[i].state == SlotState::free);
    slots_[i].state = SlotState::retired;
  }
  has_transit_ = false;
}

}  // namespace sluice::residency
