#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "platform/memory.hpp"
#include "residency/cache_policy.hpp"
#include "residency/look_ahead.hpp"
#include "residency/plan.hpp"
#include "residency/take_memory.hpp"
#include "residency/unit_map.hpp"
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

/// The experts of a model in slots of RAM, filled by direct reads.
///
/// Each layer has slots of its own, sized for its experts, whose contents its policy orders; a set of transit
/// slots serves all layers when a layer's own are taken. One fetch is active at a time; used by one thread.
class UnitCache {
 public:
  /// Borrows everything; all must outlive the cache. Maps all slots, which get their memory by take_transit()
  /// and fill_slots(). `clock`: nanoseconds; tests have one of their own. Throws Error(budget).
  UnitCache(const gguf::ModelFile& model_file, const UnitMap& map, const Placement& placement,
            CachePolicy policy, WeightStore& store, std::uint64_t (*clock)() noexcept = base::now_ns);
  ~UnitCache();
  UnitCache(const UnitCache&) = delete;
  UnitCache& operator=(const UnitCache&) = delete;

  /// One expert a layer wants, and for how many rows (its weight in the use statistics).
  struct Want {
    std::uint32_t expert = 0;
    std::uint32_t n_rows = 1;
  };
  using Admission = residency::Admission;

  /// Starts a fetch: all misses that find a slot are submitted together, before anything is computed. `wants`
  /// names each expert at most once. `now` is the token clock. Ends any earlier fetch.
  void begin(std::uint32_t layer_idx, std::span<const Want> wants, Admission admission, std::uint64_t now);
  /// Moves up to out.size() ready experts into `out`: hits first, then in order of arrival; blocks only when
  /// none is ready. Returns 0 when all of the fetch have been handed out. The leases of earlier calls must
  /// have been released. Throws Error(io) when a read failed, naming tensor and offset; the fetch is then
  /// over.
  std::size_t next(std::span<Lease> out);
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
  void preload(LoadStep step = k_no_load_step);

  /// Takes the memory of transit slots, if they are used from the start, part by part; else it comes as they
  /// are used. Throws Error(budget).
  void take_transit(MayTake may_take);
  /// Takes the memory of all other planned slots, part by part as long as it may: a neighbour may have taken
  /// what the plan counted on. To be called once, before anything is fetched.
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
  /// and within preload().
  void give_back(std::uint64_t bytes);
  /// Bytes that resize() can give back: now, and as planned. Both 0 when the cache has no transit slots or
  /// they are as large as all others.
  std::uint64_t own_slot_bytes() const noexcept;
  std::uint64_t planned_own_slot_bytes() const noexcept;
  /// An expert, its layer given as an index in the unit map's layers.
  struct Unit {
    std::uint32_t layer = 0;
    std::uint32_t expert = 0;
  };
  /// Units to read into free slots of their layers, in this order, whenever a fetch has nothing more to wait
  /// for; a few at a time, with speculative priority, so that demand is hardly delayed. Never displaces
  /// anything; reads that fail are forgotten.
  void queue_preload(std::vector<Unit> units);
  /// Goes on with these reads while `may_go_on()`; returns when it does not or nothing is left to read. No
  /// fetch may be active.
  void preload_while(base::FunctionRef<bool()> may_go_on);
  /// See LayerPolicy. Layers are indexes in the unit map's layers.
  void seed(std::uint32_t layer, std::uint32_t expert, double share_of_tokens) noexcept {
    policies_[layer].seed(expert, share_of_tokens);
  }
  std::uint32_t n_uses(std::uint32_t layer, std::uint32_t expert) const noexcept {
    return policies_[layer].n_uses(expert);
  }
  /// Slots of a layer's own that have memory now.
  std::uint32_t n_layer_slots(std::uint32_t layer) const noexcept;

  const CacheStatistics& statistics() const noexcept { return statistics_; }
  /// Per layer of the map.
  std::span<const LayerStatistics> layer_statistics() const noexcept { return layer_statistics_; }
  /// Memory of all slots, and how many have some.
  std::uint64_t slot_bytes() const noexcept { return own_bytes_ + (is_streaming_ ? transit_bytes_ : 0); }
  std::size_t n_slots() const noexcept { return slots_.size() - n_retired_; }
  /// Slots that are leased or that the active fetch waits for; none between steps.
  std::size_t n_leased() const noexcept;
  /// Whether transit slots are in use, because some experts have no slot of their own at the moment. May
  /// change with every resize().
  bool is_streaming() const noexcept { return is_streaming_; }

 private:
  friend class Lease;
  /// retired: its memory was given back.
  enum class SlotState : std::uint8_t { free, reading, ready, failed, retired };
  struct Slot {
    std::byte* data = nullptr;
    std::uint32_t layer = 0;  ///< Index in map_.layers of the unit it holds.
    std::uint32_t expert = 0;
    std::uint32_t n_leases = 0;
    SlotState state = SlotState::free;
    bool transit = false;
    bool ahead = false;          ///< Read by look-ahead and not wanted yet.
    bool early = false;          ///< The fetch that waits for it found its read already under way.
    bool preloading = false;     ///< Being read for nobody yet.
    std::uint8_t n_reading = 0;  ///< Parts whose reads are not done.
    int error = 0;
    std::uint8_t error_part = 0;
    std::uint64_t error_offset = 0;
    std::uint64_t zero_bytes = 0;
  };
  static constexpr std::int32_t k_no_slot = -1;
  static constexpr int k_zeros = -1;  ///< Slot::error where weights are zero; otherwise it is an errno.

  std::int32_t& slot_of(std::uint32_t layer, std::uint32_t expert) {
    return slot_of_[layer_base_[layer] + expert];
  }
  const std::byte* part_data(const Slot& slot, std::size_t part) const noexcept;
  void refuse_zeros(Slot& slot) const noexcept;
  std::int32_t choose_slot(std::uint32_t layer, std::uint32_t expert);
  /// A free slot of the layer's own, else the one with the lowest score that is not leased and holds none of
  /// `keep`.
  std::int32_t lowest_slot(std::uint32_t layer, std::span<const std::uint16_t> keep) const;
  void start_read(std::uint32_t slot_idx, std::uint32_t layer, std::uint32_t expert,
                  storage::Priority priority);
  void promote(std::uint32_t slot_idx);
  void observe_drive(std::uint32_t layer, Admission admission, std::uint64_t now_ns) noexcept;
  void issue_ahead();
  void judge_guesses(std::span<const Want> wants) noexcept;
  void end_demand(std::uint64_t now_ns);
  bool was_read_ahead(Slot& slot, bool used) noexcept;
  void preload_some();
  void issue_pending();
  /// How many of its own slots each layer has when all of them take at most `bytes`.
  std::vector<std::uint32_t> share_of(std::uint64_t bytes) const;
  bool has_slots(std::span<const std::uint32_t> n_wanted) const noexcept;
  void set_slots(std::span<const std::uint32_t> n_wanted);
  void resize_layer(std::uint32_t layer, std::uint32_t n_wanted);
  /// Of a layer's own, at their end: those that are neither leased nor being read.
  std::uint32_t n_idle_slots(std::uint32_t layer) const noexcept;
  void use_transit() noexcept;
  void drop_transit() noexcept;
  /// Moves a unit to the slot in [first, end) with the lowest score, when its own is higher.
  void keep_elsewhere(std::uint32_t from_idx, std::uint32_t first, std::uint32_t end);
  void complete(std::size_t min_count);
  void release(std::uint32_t slot_idx) noexcept;
  void empty_slot(std::uint32_t slot_idx) noexcept;
  [[noreturn]] void fail_unit(std::uint32_t slot_idx);

  const gguf::ModelFile& model_file_;
  const UnitMap& map_;
  WeightStore& store_;
  std::uint64_t (*clock_)() noexcept;
  platform::MappedRegion slabs_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> first_slot_;  ///< Per layer: its own slots; one more entry ends the last.
  std::uint32_t first_transit_ = 0;
  std::vector<std::size_t> layer_base_;  ///< Per layer: its first entry in slot_of_.
  std::vector<std::int32_t> slot_of_;
  std::vector<LayerPolicy> policies_;
  std::size_t max_in_flight_ = 0;  ///< Units being read at once (limit of the read queue).
  std::size_t n_in_flight_ = 0;
  std::uint64_t own_bytes_ = 0, planned_own_bytes_ = 0;  ///< Of the layers' own slots.
  std::uint64_t transit_bytes_ = 0;
  bool transit_is_spare_ = false;  ///< Transit slots have memory only while slots have given theirs back.
  bool is_streaming_ = false;
  std::size_t n_retired_ = 0;
  CacheStatistics statistics_;
  std::vector<LayerStatistics> layer_statistics_;
  LookAheadGate gate_;
  std::vector<std::uint16_t>
      guesses_;  ///< For layer guess_layer_ (an index of map_.layers); empty when issued.
  std::uint32_t guess_layer_ = 0;
  std::optional<std::size_t> max_guesses_;
  /// A guess that was not cached, and its rank among the guesses.
  struct MissingGuess {
    std::uint16_t expert = 0;
    std::uint8_t rank = 0;
  };
  std::array<MissingGuess, LookAheadGate::k_max_units> missing_guesses_;  ///< For layer guess_layer_.
  std::size_t n_missing_guesses_ = 0;
  std::uint64_t demand_end_ns_ = 0;  ///< When the last demanded unit had arrived; 0 while some are awaited.
  bool demand_read_ = false;         ///< Whether the layer had to wait for a unit.
  std::uint64_t seen_busy_ns_ = 0;   ///< Of the read queue, at the last look.
  std::uint64_t n_units_read_ = 0;   ///< Since that look.
  std::vector<Unit> preload_;        ///< Taken from `next_preload_` on.
  std::size_t next_preload_ = 0;
  std::size_t n_preloading_ = 0;

  // The active fetch.
  std::uint32_t fetch_layer_ = 0;
  Admission asked_admission_ = Admission::always;
  Admission admission_ = Admission::always;  ///< What the layer's slots allow of it.
  std::uint64_t now_ = 0;
  std::vector<std::uint32_t> pending_;  ///< Experts without a slot yet; taken from `next_pending_` on.
  std::size_t next_pending_ = 0;
  std::vector<std::uint32_t> waiting_;  ///< Slots being read for this fetch; each counts as leased.
  std::vector<std::uint32_t>
      ready_;  ///< Slots to hand out; each counts as leased. Taken from `next_ready_` on.
  std::size_t next_ready_ = 0;
};

}  // namespace sluice::residency
