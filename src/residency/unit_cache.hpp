#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "base/ticket.hpp"
#include "platform/memory.hpp"
#include "residency/look_ahead.hpp"
#include "residency/plan.hpp"
#include "residency/slot_table.hpp"
#include "residency/take_memory.hpp"
#include "residency/unit_map.hpp"
#include "residency/unit_reader.hpp"
#include "residency/weight_store.hpp"

namespace sluice::residency {

class UnitCache;

/// While it lives, the slot of one expert is neither evicted nor overwritten. Move-only.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  explicit operator bool() const noexcept { return cache_ != nullptr; }
  std::uint32_t expert() const noexcept;
  /// Start of one part's weights (rows of the part's shape). Any byte alignment.
  const std::byte* part(std::size_t part) const noexcept;
  /// Ends the lease for its owner; the slot stays as it is until the device has done the ticket. One that is
  /// destroyed or assigned to ends at once.
  void release_after(base::Ticket ticket);

 private:
  friend class UnitCache;
  Lease(UnitCache* cache, std::uint32_t slot) noexcept : cache_(cache), slot_(slot) {}
  UnitCache* cache_ = nullptr;
  std::uint32_t slot_ = 0;
};

struct LayerStatistics {
  std::uint64_t n_hits = 0, n_misses = 0, n_joins = 0, n_ahead_used = 0;
};

struct CacheStatistics {
  std::uint64_t n_hits = 0, n_misses = 0, n_joins = 0;
  /// Look-ahead: units it began to read; those of them that were wanted next, which count neither as hits nor
  /// as misses; and those that left without having been wanted.
  std::uint64_t n_ahead = 0, n_ahead_used = 0, n_ahead_wasted = 0;
  std::uint64_t n_preloaded = 0;  ///< Units that queue_preload() made it read.
  std::uint64_t stall_ns = 0;
  std::uint64_t n_shrinks = 0, n_grows = 0;  ///< Times that slots were given back and taken again.
};

/// The experts of a model in slots of RAM, filled by direct reads: what a layer wants is fetched by begin()
/// and next(). SlotTable knows what lies where and what leaves next, UnitReader reads; this class has the
/// memory and decides what is read when.
///
/// One fetch is active at a time; used by one thread.
class UnitCache {
 public:
  /// Borrows everything; all must outlive the cache. Maps all slots, which get their memory by take_transit()
  /// and fill_slots(). `clock`: nanoseconds; tests have one of their own. `device`: gives the tickets after
  /// which leases end; null when there is none and all end at once. Throws Error(budget).
  UnitCache(const gguf::ModelFile& model_file, const UnitMap& map, const Placement& placement,
            CachePolicy policy, WeightStore& store, std::uint64_t (*clock)() noexcept = base::now_ns,
            base::TicketSource* device = nullptr);
  ~UnitCache();
  UnitCache(const UnitCache&) = delete;
  UnitCache& operator=(const UnitCache&) = delete;

  /// One expert a layer wants, and for how many rows (its weight in the use statistics).
  struct Want {
    std::uint32_t expert = 0;
    std::uint32_t n_rows = 1;
    Admission admission = Admission::always;
  };

  /// Starts a fetch: all misses that find a slot are submitted together, before anything is computed. `wants`
  /// names each expert at most once. `now` is the token clock. Ends any earlier fetch.
  void begin(std::uint32_t layer_idx, std::span<const Want> wants, std::uint64_t now);
  /// Moves up to out.size() ready experts into `out`: hits first, then in order of arrival; blocks only when
  /// none is ready. Returns 0 when all of the fetch that could be read have been handed out. The leases of
  /// earlier calls must have been released, be it after a ticket. Throws Error(io) when nothing can be read
  /// any more.
  std::size_t next(std::span<Lease> out);
  /// Experts of the last fetch that could not be read and so are not handed out, as far as next() has got.
  /// The rows that want them cannot be computed; the fetch goes on.
  std::span<const UnitFailure> failures() const noexcept { return failures_; }
  /// Throws the first of them as Error(io) or Error(invalid_file), for callers who need all.
  void require_all() const;
  /// Says what a layer's router will probably want, best guess first. Some of what is not cached is read once
  /// all units of the current fetch have arrived, in the time in which the drive would have nothing to do. It
  /// takes the place of the unit with the lowest score, never of one that is leased or guessed.
  /// `max_units` stands in for what the gate allows.
  void look_ahead(std::uint32_t layer_idx, std::span<const std::uint16_t> experts,
                  std::optional<std::size_t> max_units = std::nullopt);
  /// Gives up the rest of the fetch (an error, a cancel). Reads in flight end in the background.
  void abandon() noexcept;

  /// Reads every expert that has a slot of its own, in file order: for plans in which all fit. What `step`
  /// throws ends it, after which the cache can only be destroyed: that waits for the few reads that have
  /// begun, not for all.
  void load_all(LoadStep step = k_no_load_step);

  /// Takes the memory of transit slots, if they are used from the start, part by part; else it comes as they
  /// are used. Throws Error(budget).
  void take_transit(MayTake may_take);
  /// Takes the memory of all other planned slots, part by part as long as it may: a neighbour may have taken
  /// what the plan counted on. To be called once, before anything is fetched. Throws Error(budget) when
  /// the system then refuses the transit slots.
  void fill_slots(MayTake may_take);
  /// Holds at most `bytes` in slots of the layers' own from now on, about the same share of every layer's:
  /// gives the memory of the units with the lowest scores back to the system, or takes slots that it gave
  /// back into use again. Does nothing when no slot would change. Between steps, or layers of one, only.
  ///
  /// A cache that keeps every expert begins to stream by it: slots give `bytes` and what transit slots need,
  /// then those get their memory, so that it never holds more than the plan says. At
  /// planned_own_slot_bytes() it keeps all again.
  void resize(std::uint64_t bytes);
  /// Gives back at least `bytes` of the layers' own slots, as far as there are slots that are neither leased
  /// nor being read. Waits for nothing, so it may be called within a fetch, while none of its leases is out,
  /// and within load_all().
  void give_back(std::uint64_t bytes);
  /// Bytes that resize() can give back: now, and as planned. Both 0 when the cache has no transit slots or
  /// they are as large as all others.
  std::uint64_t own_slot_bytes() const noexcept;
  std::uint64_t planned_own_slot_bytes() const noexcept;
  using Unit = UnitId;
  /// Units to read into free slots of their layers, in this order, whenever a fetch has nothing more to wait
  /// for; a few at a time, with speculative priority, so that demand is hardly delayed. Never displaces
  /// anything; reads that fail are forgotten.
  void queue_preload(std::vector<Unit> units);
  /// Goes on with these reads while `may_go_on()`; returns when it does not or nothing is left to read. No
  /// fetch may be active.
  void preload_while(base::FunctionRef<bool()> may_go_on);
  /// See LayerPolicy. Layers are indexes in the unit map's layers.
  void seed(std::uint32_t layer, std::uint32_t expert, double share_of_tokens) noexcept {
    table_.policy(layer).seed(expert, share_of_tokens);
  }
  std::uint32_t n_uses(std::uint32_t layer, std::uint32_t expert) const noexcept {
    return table_.policy(layer).n_uses(expert);
  }
  /// Slots of a layer's own that have memory now.
  std::uint32_t n_layer_slots(std::uint32_t layer) const noexcept { return table_.n_slots(layer); }

  CacheStatistics statistics() const noexcept;
  /// Per layer of the map.
  std::span<const LayerStatistics> layer_statistics() const noexcept { return layer_statistics_; }
  /// Memory of all slots, and how many have some.
  std::uint64_t slot_bytes() const noexcept { return own_bytes_ + (is_streaming() ? transit_bytes_ : 0); }
  std::size_t n_slots() const noexcept { return table_.n_usable(); }
  /// Slots that are leased or that the active fetch waits for; none between steps, once a device's work is
  /// done.
  std::size_t n_leased() const noexcept { return table_.n_leased(); }
  /// Whether transit slots are in use, because some experts have no slot of their own at the moment. May
  /// change with every resize().
  bool is_streaming() const noexcept { return table_.has_transit(); }

 private:
  friend class Lease;
  /// A slot that is read for the active fetch.
  struct Awaited {
    std::uint32_t slot = 0;
    bool early = false;  ///< Its read was under way before the fetch.
  };

  std::byte* memory(std::uint32_t slot) const noexcept { return slabs_.data() + offset_[slot]; }
  void start_read(std::uint32_t slot, UnitId unit, ReadFor read_for);
  /// Takes in what has arrived, at least `min_parts` parts of units.
  void complete(std::size_t min_parts);
  void end_leases() noexcept;
  void wait_for_device() noexcept;  ///< Ends all leases that wait for tickets.

  // The active fetch.
  bool is_demand_over() const noexcept { return waiting_.empty() && next_pending_ == pending_.size(); }
  void observe_drive(std::uint32_t layer, bool decodes, std::uint64_t now_ns) noexcept;
  bool join(std::uint32_t slot);
  void issue_pending();
  void sort_arrivals();
  void wait_for_any();
  void end_demand(std::uint64_t now_ns);
  void issue_ahead();
  void preload_some();

  // Memory.
  /// How many of its own slots each layer has when all of them take at most `bytes`.
  std::vector<std::uint32_t> share_of(std::uint64_t bytes) const;
  bool has_slots(std::span<const std::uint32_t> n_wanted) const noexcept;
  void set_slots(std::span<const std::uint32_t> n_wanted);
  void resize_layer(std::uint32_t layer, std::uint32_t n_wanted);

  const UnitMap& map_;
  std::uint64_t (*clock_)() noexcept;
  base::TicketSource* device_;
  platform::MappedRegion slabs_;
  std::vector<std::uint64_t> offset_;  ///< Per slot: where it lies in slabs_.
  SlotTable table_;
  UnitReader reader_;
  std::uint64_t own_bytes_ = 0, planned_own_bytes_ = 0;  ///< Of the layers' own slots.
  std::uint64_t transit_bytes_ = 0;
  bool transit_is_spare_ = false;  ///< Transit slots have memory only while slots have given theirs back.
  CacheStatistics statistics_;
  std::vector<LayerStatistics> layer_statistics_;

  Guesses guesses_;
  std::uint64_t demand_end_ns_ = 0;  ///< When the last demanded unit had arrived; 0 while some are awaited.
  bool demand_read_ = false;         ///< Whether the layer had to wait for a unit.
  std::vector<Unit> preload_;        ///< Taken from `next_preload_` on.
  std::size_t next_preload_ = 0;
  std::size_t n_preloading_ = 0;

  // The active fetch.
  std::uint32_t fetch_layer_ = 0;
  bool decodes_ = true;                      ///< Whether some of its wants may always displace others.
  Admission admission_ = Admission::always;  ///< What the layer's slots allow of these.
  std::vector<bool> only_if_better_;         ///< By expert: what the want asks for.
  std::uint64_t now_ = 0;
  std::vector<std::uint32_t> pending_;  ///< Experts without a slot yet; taken from `next_pending_` on.
  std::size_t next_pending_ = 0;
  std::vector<Awaited> waiting_;      ///< Each counts as leased.
  std::vector<std::uint32_t> ready_;  ///< Slots to hand out, leased; taken from `next_ready_` on.
  std::size_t next_ready_ = 0;
  std::vector<UnitFailure> failures_;
};

}  // namespace sluice::residency
