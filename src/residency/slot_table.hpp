#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/function_ref.hpp"
#include "base/ticket.hpp"
#include "residency/cache_policy.hpp"

namespace sluice::residency {

/// An expert, its layer given as an index in the unit map's layers.
struct UnitId {
  std::uint32_t layer = 0;
  std::uint32_t expert = 0;
  bool operator==(const UnitId&) const = default;
};

enum class SlotState : std::uint8_t {
  retired,  ///< Has no memory.
  free,
  reading,
  ready,
  failed,  ///< Holds nothing of use, but has leases.
};

/// For whom a unit is, or was, read: for a fetch, as a guess of look-ahead that nobody has wanted yet, or as
/// a preload that is still being read.
enum class ReadFor : std::uint8_t { demand, guess, preload };

/// Which unit lies in which slot of one tier of memory, who holds it, and which one leaves next. Pure: it
/// knows neither memory nor drives, and does nothing on its own.
///
/// Each layer has slots of its own, whose contents its policy orders; transit slots serve all layers and are
/// emptied when their last lease ends. Slots have indexes: those of the first layer, of the next, ...,
/// transit slots. Retired slots are the last ones of a layer. Every function but the const ones requires what
/// it says; to break that is a programmer error.
class SlotTable {
 public:
  static constexpr std::uint32_t k_none = std::numeric_limits<std::uint32_t>::max();

  struct LayerSize {
    std::uint32_t n_slots = 0;
    std::uint32_t n_experts = 0;
  };
  struct Slot {
    UnitId unit;  ///< While it is neither free nor retired.
    std::uint32_t n_leases = 0;
    SlotState state = SlotState::retired;
    ReadFor read_for = ReadFor::demand;
  };

  /// All slots are retired.
  SlotTable(std::span<const LayerSize> layers, std::uint32_t n_transit, CachePolicy policy);

  /// Slot that holds a unit, or is to when it has been read; k_none when there is none.
  std::uint32_t find(UnitId unit) const noexcept { return slot_of_[unit_base_[unit.layer] + unit.expert]; }
  const Slot& operator[](std::uint32_t slot) const noexcept { return slots_[slot]; }
  std::size_t size() const noexcept { return slots_.size(); }
  /// A layer's own slots: the first, how many there are, and how many are not retired.
  std::uint32_t first_slot(std::uint32_t layer) const noexcept { return first_slot_[layer]; }
  std::uint32_t n_planned(std::uint32_t layer) const noexcept {
    return first_slot_[layer + 1] - first_slot_[layer];
  }
  std::uint32_t n_slots(std::uint32_t layer) const noexcept { return n_used_[layer]; }
  std::uint32_t first_transit() const noexcept { return first_slot_.back(); }
  bool has_transit() const noexcept { return has_transit_; }  ///< Whether transit slots are in use.
  std::size_t n_usable() const noexcept;                      ///< Slots that are not retired.
  std::size_t n_leased() const noexcept;
  /// Guesses that left without having been wanted.
  std::uint64_t n_wasted() const noexcept { return n_wasted_; }

  LayerPolicy& policy(std::uint32_t layer) noexcept { return policies_[layer]; }
  const LayerPolicy& policy(std::uint32_t layer) const noexcept { return policies_[layer]; }

  /// A free slot of the layer's own, else the one with the lowest score at time `now` among those that are
  /// ready, not leased, and hold none of the experts `keep`; k_none when there is none.
  std::uint32_t lowest(std::uint32_t layer, std::span<const std::uint16_t> keep,
                       std::uint64_t now) const noexcept;
  /// Where a unit that is missing should go: lowest() when it may displace what is there, else a free transit
  /// slot, else k_none.
  std::uint32_t choose(UnitId unit, Admission admission, std::uint64_t now) const noexcept;
  /// k_none when there is none.
  std::uint32_t first_free(std::uint32_t layer) const noexcept;

  /// The slot, which is not leased and not being read, becomes free.
  void empty(std::uint32_t slot) noexcept;
  /// A slot that is free or could be emptied begins to read a unit that no slot holds.
  void fill(std::uint32_t slot, UnitId unit, ReadFor read_for) noexcept;
  /// The read is over. What failed, or lies in a transit slot, is dropped when nobody has a lease.
  void finish(std::uint32_t slot, bool ok) noexcept;

  /// A lease for a fetch that wants the unit; says for whom it was read until now.
  ReadFor want(std::uint32_t slot) noexcept;
  void release(std::uint32_t slot) noexcept;
  /// Ends a lease when the ticket is done, of which end_leases() must hear.
  void release_after(std::uint32_t slot, base::Ticket ticket);
  /// Ends the leases whose tickets are done.
  void end_leases(base::FunctionRef<bool(base::Ticket)> is_done) noexcept;
  /// The earliest ticket that a lease waits for; 0 when none does.
  base::Ticket first_ticket() const noexcept;

  /// Slots at the end of a layer's own that are neither leased nor being read.
  std::uint32_t n_idle(std::uint32_t layer) const noexcept;
  /// Takes `n` of the layer's own slots into use.
  void grow(std::uint32_t layer, std::uint32_t n) noexcept;
  /// Retires the last `n` of them, at most n_idle(). A unit worth keeping moves to a slot that stays, in
  /// place of one with a lower score; `copy` is told from where to where.
  void shrink(std::uint32_t layer, std::uint32_t n, std::uint64_t now,
              base::FunctionRef<void(std::uint32_t from, std::uint32_t to)> copy);
  void use_transit() noexcept;
  void retire_transit() noexcept;  ///< All of them must be free.

 private:
  struct Pending {
    base::Ticket ticket = 0;
    std::uint32_t slot = 0;
  };
  /// Where in [first, end) the unit of `from`, which leaves, has a higher score than what is there.
  std::uint32_t better_place(std::uint32_t from, std::uint32_t first, std::uint32_t end,
                             std::uint64_t now) const noexcept;
  bool is_idle(const Slot& slot) const noexcept {
    return slot.n_leases == 0 && slot.state != SlotState::reading;
  }
  bool is_transit(std::uint32_t slot) const noexcept { return slot >= first_transit(); }
  std::uint32_t& slot_of(UnitId unit) noexcept { return slot_of_[unit_base_[unit.layer] + unit.expert]; }

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> first_slot_;  ///< Per layer; one more entry ends the last.
  std::vector<std::uint32_t> n_used_;      ///< Per layer: slots that are not retired.
  std::vector<std::size_t> unit_base_;     ///< Per layer: its first entry in slot_of_.
  std::vector<std::uint32_t> slot_of_;
  std::vector<LayerPolicy> policies_;
  std::vector<Pending> pending_;
  bool has_transit_ = false;
  std::uint64_t n_wasted_ = 0;
};

}  // namespace sluice::residency
