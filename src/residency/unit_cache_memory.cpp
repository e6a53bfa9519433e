// How a unit cache takes memory, gives it back and takes it again. How it fetches is in unit_cache.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/units.hpp"
#include "residency/unit_cache.hpp"

namespace sluice::residency {

void UnitCache::fill_slots(MayTake may_take) {
  // Small beside the mark that stays free, because others may take memory while pages come.
  const std::uint64_t most = std::clamp(planned_own_bytes_ / 1024, base::k_mib, 16 * base::k_mib);
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
  // Not all could be had: what is here makes room for the slots that the others pass through, and for what is
  // taken while their pages come.
  if (own_bytes_ < planned_own_bytes_ && transit_is_spare_) {
    set_slots(share_of(own_bytes_ - std::min(own_bytes_, transit_bytes_)));
    take_memory(slabs_, planned_own_bytes_, transit_bytes_, [&](std::uint64_t bytes) {
      while (own_bytes_ != 0 && !may_take(bytes)) set_slots(share_of(own_bytes_ - own_bytes_ / 16));
      return true;
    });
    table_.use_transit();
  }
}

std::uint64_t UnitCache::own_slot_bytes() const noexcept {
  if (transit_is_spare_ && !is_streaming()) return planned_own_slot_bytes();
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
  if (is_streaming() != keeps_all && has_slots(n_wanted)) return;
  abandon();
  while (reader_.n_reading() != 0) complete(1);
  wait_for_device();
  ++(bytes < own_slot_bytes() ? statistics_.n_shrinks : statistics_.n_grows);
  if (keeps_all && is_streaming()) {
    table_.retire_transit();
    slabs_.release_pages(planned_own_bytes_, transit_bytes_);
  }
  set_slots(n_wanted);
  if (own_bytes_ < planned_own_bytes_ && !is_streaming()) {
    // Where the system refused memory for the last slots, others make room for transit again.
    if (keeps_all) set_slots(share_of(std::min(own_bytes_, planned)));
    // Should it refuse these, too, pages come one by one as reads touch them.
    slabs_.restore_pages(planned_own_bytes_, transit_bytes_);
    table_.use_transit();
  }
}

void UnitCache::give_back(std::uint64_t bytes) {
  if (planned_own_slot_bytes() == 0) return;
  // What is read for nobody yet can be read again, or never.
  reader_.cancel_speculative();
  complete(0);
  end_leases();
  const std::uint64_t for_transit = is_streaming() ? 0 : transit_bytes_;
  std::uint64_t idle_bytes = 0;
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer)
    idle_bytes += table_.n_idle(layer) * map_.layers[layer].slot_bytes;
  if (idle_bytes == 0 || idle_bytes < for_transit) return;
  ++statistics_.n_shrinks;
  const double share =
      std::min(1.0, static_cast<double>(bytes + for_transit) / static_cast<double>(idle_bytes));
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    const auto n = static_cast<std::uint32_t>(std::ceil(table_.n_idle(layer) * share));
    resize_layer(layer, n_layer_slots(layer) - n);
  }
  // Pages of transit slots come as reads touch them: to take all of them here may last longer than others
  // need for what is left.
  if (!is_streaming()) table_.use_transit();
}

std::vector<std::uint32_t> UnitCache::share_of(std::uint64_t bytes) const {
  const double share =
      planned_own_bytes_ == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(planned_own_bytes_);
  std::vector<std::uint32_t> n_slots;
  for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
    const std::uint32_t n_planned = table_.n_planned(layer);
    n_slots.push_back(static_cast<std::uint32_t>(n_planned * share));
    bytes -= std::min(bytes, n_slots.back() * map_.layers[layer].slot_bytes);
  }
  // What is left goes to the layer whose share would be the smallest with one slot more, and so on up to the
  // first that does not fit. So more bytes never mean fewer slots of any layer: a layer that gave slots back
  // while others take some would leave holes in huge pages, whose memory is not free until the system needs
  // it badly.
  for (;;) {
    std::optional<std::uint32_t> next;
    const auto share_with_one_more = [&](std::uint32_t layer, std::uint32_t n_planned_of_other) {
      return (std::uint64_t{n_slots[layer]} + 1) * n_planned_of_other;
    };
    for (std::uint32_t layer = 0; layer < map_.layers.size(); ++layer) {
      if (n_slots[layer] >= table_.n_planned(layer)) continue;
      if (!next || share_with_one_more(layer, table_.n_planned(*next)) <
                       share_with_one_more(*next, table_.n_planned(layer)))
        next = layer;
    }
    if (!next || map_.layers[*next].slot_bytes > bytes) break;
    ++n_slots[*next];
    bytes -= map_.layers[*next].slot_bytes;
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
  if (is_streaming()) take_memory(slabs_, planned_own_bytes_, transit_bytes_, may_take);
}

// The retired slots are the last ones of a layer, so that what is given back is contiguous: memory of a huge
// page is free only when all of it is.
void UnitCache::resize_layer(std::uint32_t layer, std::uint32_t n_wanted) {
  const std::uint64_t bytes = map_.layers[layer].slot_bytes;
  const std::uint32_t n_used = n_layer_slots(layer), first = table_.first_slot(layer);
  if (n_used < n_wanted) {
    const std::uint32_t n = n_wanted - n_used;
    if (!slabs_.restore_pages(offset_[first + n_used], n * bytes)) return;
    table_.grow(layer, n);
    own_bytes_ += n * bytes;
  } else if (n_used > n_wanted) {
    const std::uint32_t n = n_used - n_wanted;
    table_.shrink(layer, n, now_, [&](std::uint32_t from, std::uint32_t to) {
      std::memcpy(memory(to), memory(from), bytes);
    });
    slabs_.release_pages(offset_[first + n_wanted], n * bytes);
    own_bytes_ -= n * bytes;
  }
}

}  // namespace sluice::residency
