#include "residency/plan.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "residency/plan_items.hpp"

namespace sluice::residency {
namespace {

using base::format_bytes;

KvDemand kv_demand(const OpenOptions& options, std::uint32_t n_ctx, std::uint32_t n_rows) {
  const std::uint64_t all = std::uint64_t{n_ctx} * options.max_sequences;
  return {n_ctx, options.max_sequences, options.kv_tokens == 0 ? all : std::min(all, options.kv_tokens),
          n_rows};
}

std::uint64_t pages_bytes(const ModelFacts& model, const OpenOptions& options, std::uint32_t n_ctx,
                          std::uint32_t n_rows) {
  return kv_bytes(model.kv_groups, model.kv_page_tokens, kv_demand(options, n_ctx, n_rows));
}

std::uint64_t pinned_total(const ModelFacts& model) {
  std::uint64_t total = 0;
  for (const auto& [role, bytes] : model.pinned_bytes) total += bytes;
  return total;
}

std::uint64_t all_slots_bytes(const ModelFacts& model) {
  std::uint64_t total = 0;
  for (const auto& layer : model.expert_layers) total += layer.n_experts * layer.slot_bytes;
  return total;
}

/// The shared slots: enough for one token's experts of any layer and two more.
struct Transit {
  std::uint32_t n_slots = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t bytes() const { return n_slots * slot_bytes; }
};

Transit transit_slots(const ModelFacts& model) {
  Transit transit;
  std::uint32_t n_used = 0, n_experts = 0;
  for (const auto& layer : model.expert_layers) {
    n_used = std::max(n_used, layer.n_used);
    n_experts = std::max(n_experts, layer.n_experts);
    transit.slot_bytes = std::max(transit.slot_bytes, layer.slot_bytes);
  }
  transit.n_slots = std::min(n_used + k_extra_transit, n_experts);
  return transit;
}

/// What leaves memory besides experts.
struct Level {
  bool embedding_on_drive = false;
  bool streams_blocks = false;
};

std::uint64_t block_bytes(const ModelFacts& model) {
  std::uint64_t total = 0;
  for (const DenseBlockFacts& block : model.blocks) total += block.bytes;
  return total;
}

/// Everything but expert slots, for passes of some size. With streamed blocks: as if none of them were
/// pinned.
struct Fixed {
  std::uint64_t process = 0;
  std::uint64_t draft = 0, others = 0;  ///< The draft and other open models.
  std::uint64_t pinned = 0, alignment = 0, kv = 0, state = 0, ring = 0;
  Transit transit;
  std::uint64_t scratch = 0;  ///< 0 until passes have their size.
  std::uint64_t total() const {
    return process + draft + others + pinned + alignment + kv + state + ring + transit.bytes() + scratch;
  }
};

Fixed fixed_parts(const ModelFacts& model, const MachineFacts& machine, const OpenOptions& options,
                  std::uint32_t n_ctx, std::uint32_t n_rows, Level level) {
  Fixed fixed;
  fixed.process = machine.process_bytes + model.bookkeeping_bytes;
  fixed.draft = machine.draft_bytes;
  fixed.others = machine.other_bytes;
  fixed.pinned = pinned_total(model);
  fixed.alignment = model.alignment_bytes;
  fixed.kv = pages_bytes(model, options, n_ctx, n_rows);
  fixed.state = model.state_bytes * options.max_sequences;
  fixed.transit = transit_slots(model);
  if (level.embedding_on_drive || level.streams_blocks) fixed.alignment += model.split_bytes;
  if (level.embedding_on_drive) fixed.pinned -= model.embedding_bytes;
  if (level.streams_blocks) {
    fixed.pinned -= block_bytes(model);
    fixed.ring = k_min_ring_slots * model.ring_slot_bytes;
  }
  return fixed;
}

std::uint64_t scratch_bytes(const ModelFacts& model, Level level, std::uint32_t n_rows) {
  return model.scratch_bytes(n_rows) + (level.embedding_on_drive ? model.gather_bytes(n_rows) : 0);
}

/// From all in memory to as little as possible.
std::vector<Level> levels_of(const ModelFacts& model) {
  std::vector<Level> levels = {{}};
  if (model.embedding_bytes != 0) levels.push_back({true, false});
  if (!model.blocks.empty()) levels.push_back({model.embedding_bytes != 0, true});
  return levels;
}

std::uint32_t choose_context(const ModelFacts& model, const MachineFacts& machine, const OpenOptions& options,
                             std::uint64_t budget) {
  const std::uint32_t trained = model.n_ctx_train == 0 ? k_default_ctx : model.n_ctx_train;
  if (options.n_ctx != 0) {
    if (options.n_ctx > trained) {
      base::fail(
          ErrorCode::invalid_argument,
          "a context of {} tokens was asked for, but the model was trained for {}; ask for at most that",
          options.n_ctx, trained);
    }
    return options.n_ctx;
  }
  // Nobody asked: halve until the cache takes at most a quarter of what is left beside the weights, or an
  // eighth where weights are streamed, because there it makes every token slower.
  std::uint32_t n_ctx = std::min(trained, k_default_ctx);
  const auto room = [&](Level level) {
    const std::uint64_t taken =
        fixed_parts(model, machine, options, std::min(n_ctx, k_min_auto_ctx), 1, level).total();
    return budget > taken ? budget - taken : 0;
  };
  std::uint64_t most = room({}) / 4;
  if (most == 0) most = room(levels_of(model).back()) / 8;
  while (n_ctx > k_min_auto_ctx && pages_bytes(model, options, n_ctx, 1) > most) {
    n_ctx = std::max(k_min_auto_ctx, n_ctx / 2);
  }
  return n_ctx;
}

/// "draft model 5.74 MiB, ", or nothing when it takes none.
std::string part_text(const char* what, std::uint64_t bytes) {
  return bytes == 0 ? std::string() : fmt::format("{} {}, ", what, format_bytes(bytes));
}

[[noreturn]] void refuse(const Fixed& fixed, std::uint64_t scratch, std::uint64_t budget, std::uint64_t floor,
                         const std::string& source, std::uint32_t n_ctx) {
  base::fail(
      ErrorCode::budget,
      "the memory budget of {} ({}) is too small: this model needs at least {} ({} bytes) with a context of "
      "{} tokens "
      "(process and vocabulary {}, {}{}weights that must stay {}, KV cache {}, {}scratch {}, {} expert slots "
      "{}, "
      "ring of streamed weights {}). Give --memory {}M or more{}",
      format_bytes(budget), source, format_bytes(floor), floor, n_ctx, format_bytes(fixed.process),
      part_text("draft model", fixed.draft), part_text("other open models", fixed.others),
      format_bytes(fixed.pinned + fixed.alignment), format_bytes(fixed.kv),
      part_text("recurrent state", fixed.state), format_bytes(scratch), fixed.transit.n_slots,
      format_bytes(fixed.transit.bytes()), format_bytes(fixed.ring), (floor + base::k_mib - 1) / base::k_mib,
      n_ctx > k_min_auto_ctx ? ", or a smaller --ctx" : "");
}

std::uint32_t choose_chunk(const ModelFacts& model, const OpenOptions& options, std::uint32_t n_ctx,
                           Level level, std::uint64_t spare, std::uint32_t max_chunk) {
  if (options.prefill_chunk != 0) return std::min(options.prefill_chunk, n_ctx);
  // A larger pass reads each streamed expert for more rows; an eighth of what is left is worth that. The
  // scratch is linear in the rows, so the choice moves smoothly with the budget. Beside a dense model that
  // stays whole nothing else wants the room.
  const bool is_only_user = model.expert_layers.empty() && !level.streams_blocks;
  const std::uint64_t most = is_only_user ? spare : spare / 8;
  std::uint32_t low = std::min(k_min_chunk, n_ctx), high = std::min(max_chunk, n_ctx);
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    const std::uint64_t kv =
        pages_bytes(model, options, n_ctx, middle) - pages_bytes(model, options, n_ctx, 1);
    if (scratch_bytes(model, level, middle) + kv <= most) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Spreads `bytes` over the layers: the same number of slots each, what is left to the first layers.
std::vector<std::uint32_t> share_slots(const ModelFacts& model, std::uint64_t bytes) {
  std::vector<std::uint32_t> slots(model.expert_layers.size(), 0);
  bool grew = true;
  // All layers grow by the same number of slots at once while they can, then one by one.
  std::uint64_t round_bytes = 0;
  for (const auto& layer : model.expert_layers) round_bytes += layer.slot_bytes;
  if (round_bytes != 0) {
    const std::uint64_t rounds = bytes / round_bytes;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(rounds, model.expert_layers[i].n_experts));
      bytes -= slots[i] * model.expert_layers[i].slot_bytes;
    }
  }
  while (grew) {
    grew = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto& layer = model.expert_layers[i];
      if (slots[i] < layer.n_experts && layer.slot_bytes <= bytes) {
        ++slots[i];
        bytes -= layer.slot_bytes;
        grew = true;
      }
    }
  }
  return slots;
}

/// The first level that fits, and the floor of all.
Level choose_level(const ModelFacts& model, const MachineFacts& machine, const OpenOptions& options,
                   std::uint64_t budget, const std::string& source, std::uint32_t n_ctx,
                   std::uint64_t& floor) {
  const auto chunk_of = [&](std::uint32_t n) {
    return std::min(options.prefill_chunk != 0 ? options.prefill_chunk : n, n_ctx);
  };
  const std::vector<Level> levels = levels_of(model);
  const auto needs = [&](Level level, std::uint32_t chunk) {
    return fixed_parts(model, machine, options, n_ctx, chunk, level).total() +
           scratch_bytes(model, level, chunk);
  };
  Level lowest;
  floor = needs(lowest, chunk_of(k_min_chunk));
  for (const Level level : levels) {
    if (const std::uint64_t bytes = needs(level, chunk_of(k_min_chunk)); bytes < floor) {
      floor = bytes;
      lowest = level;
    }
  }
  if (budget < floor) {
    const std::uint32_t chunk = chunk_of(k_min_chunk);
    refuse(fixed_parts(model, machine, options, n_ctx, chunk, lowest), scratch_bytes(model, lowest, chunk),
           budget, floor, source, n_ctx);
  }
  const bool is_moe = !model.expert_layers.empty();
  const std::uint64_t experts =
      all_slots_bytes(model) - std::min(all_slots_bytes(model), transit_slots(model).bytes());
  for (const Level level : levels) {
    const bool is_whole = !level.embedding_on_drive && !level.streams_blocks;
    // Room for experts is worth more than embeddings, unless there is room for both.
    if (is_whole && is_moe && model.embedding_bytes >= k_min_drive_embedding &&
        budget < needs(level, chunk_of(k_comfort_chunk)) + experts)
      continue;
    if (budget >= needs(level, chunk_of(is_moe || level.streams_blocks ? k_min_chunk : k_comfort_chunk)))
      return level;
  }
  return lowest;
}

/// Divides what the blocks and their ring may have; sets placement and the ring's bytes.
void place_blocks(const ModelFacts& model, std::uint64_t bytes, Placement& placement, Fixed& fixed) {
  // A sixteenth of the room, so that little is taken from a small budget, for the ring that is wanted.
  const std::uint64_t slot = model.ring_slot_bytes;
  std::uint64_t n_slots = std::max<std::uint64_t>(
      k_min_ring_slots, std::min(k_wanted_ring_bytes, (bytes + fixed.ring) / 16) / slot);
  bytes -= n_slots * slot - fixed.ring;
  placement.block_is_pinned = choose_pinned_blocks(model.blocks, bytes);
  std::uint64_t pinned = 0;
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    pinned += placement.block_is_pinned[i] ? model.blocks[i].bytes : 0;
  fixed.pinned += pinned;
  if (pinned == block_bytes(model)) {
    fixed.ring = 0;
    return;
  }
  const std::uint64_t most = std::max(n_slots, k_max_ring_bytes / slot);
  n_slots = std::min(most, n_slots + (bytes - pinned) / slot);
  placement.n_ring_slots = static_cast<std::uint32_t>(n_slots);
  fixed.ring = n_slots * slot;
}

/// A ring for a dense model of which all fits, so that it can give way later; from what nothing else uses.
void add_spare_ring(const ModelFacts& model, Level level, std::uint64_t bytes, Placement& placement,
                    Fixed& fixed) {
  const std::uint64_t of_blocks = block_bytes(model), slot = model.ring_slot_bytes;
  if (!model.expert_layers.empty() || of_blocks == 0) return;
  const std::uint64_t wanted =
      std::max(k_min_ring_slots * slot, std::min(k_wanted_ring_bytes, of_blocks / 16));
  const std::uint64_t split = level.embedding_on_drive || level.streams_blocks ? 0 : model.split_bytes;
  if (bytes < split + k_min_ring_slots * slot || wanted > of_blocks / 2) return;
  placement.n_ring_slots = static_cast<std::uint32_t>(std::min(wanted, bytes - split) / slot);
  placement.ring_is_spare = true;
  fixed.ring = placement.n_ring_slots * slot;
  fixed.alignment += split;
}

/// How many experts of each layer stay, and whether transit slots are needed from the start.
void place_experts(const ModelFacts& model, std::uint64_t bytes, Placement& placement, Fixed& fixed) {
  placement.n_transit = fixed.transit.n_slots;
  placement.transit_slot_bytes = fixed.transit.slot_bytes;
  if (all_slots_bytes(model) > bytes + fixed.transit.bytes()) {
    placement.slots_per_layer = share_slots(model, bytes);
    return;
  }
  // Everything stays: nothing passes through before slots give way, and then those have made room.
  fixed.transit = {};
  placement.transit_is_spare = placement.n_transit != 0;
  for (const auto& layer : model.expert_layers) placement.slots_per_layer.push_back(layer.n_experts);
}

void check_kv(const ModelFacts& model, const OpenOptions& options, std::uint32_t n_ctx) {
  if (options.kv_tokens != 0 && options.kv_tokens < n_ctx) {
    base::fail(
        ErrorCode::invalid_argument,
        "a KV cache of {} tokens was asked for, but one sequence may have {}; give it at least that, or "
        "a smaller context",
        options.kv_tokens, n_ctx);
  }
  for (const KvGroupFacts& group : model.kv_groups) {
    const std::uint64_t n = kv_pages(group, model.kv_page_tokens, kv_demand(options, n_ctx, n_ctx));
    if (n >= UINT32_MAX) {
      base::fail(ErrorCode::budget, "a KV cache of {} pages cannot be addressed; give a smaller --ctx", n);
    }
  }
}

/// The budget asked for, or the machine's.
std::uint64_t choose_budget(const MachineFacts& machine, const OpenOptions& options, Plan& plan) {
  plan.budget_is_default = options.memory_bytes == 0;
  plan.budget_bytes = plan.budget_is_default ? machine.default_budget_bytes : options.memory_bytes;
  plan.budget_source = plan.budget_is_default ? machine.default_budget_source : "--memory";
  if (!plan.budget_is_default && machine.total_bytes != 0 && plan.budget_bytes > machine.total_bytes) {
    base::fail(
        ErrorCode::budget,
        "a memory budget of {} (--memory) is more than there is: {} has {}; give at most --memory {}M, "
        "or none to take what is free",
        format_bytes(plan.budget_bytes), machine.total_source, format_bytes(machine.total_bytes),
        machine.total_bytes / base::k_mib);
  }
  return plan.budget_bytes;
}

}  // namespace

Placement make_plan(const ModelFacts& model, const MachineFacts& machine, const OpenOptions& options) {
  Placement placement;
  Plan& plan = placement.plan;
  const std::uint64_t budget = choose_budget(machine, options, plan);
  const std::uint32_t n_ctx = choose_context(model, machine, options, budget);
  check_kv(model, options, n_ctx);
  const Level level =
      choose_level(model, machine, options, budget, plan.budget_source, n_ctx, plan.floor_bytes);
  const std::uint64_t all_slots = all_slots_bytes(model);
  const auto parts_for = [&](std::uint32_t n_rows) {
    Fixed parts = fixed_parts(model, machine, options, n_ctx, n_rows, level);
    parts.scratch = scratch_bytes(model, level, n_rows);
    return parts;
  };
  const std::uint64_t spare = budget - fixed_parts(model, machine, options, n_ctx, 1, level).total();
  std::uint32_t chunk = choose_chunk(model, options, n_ctx, level, spare, k_max_chunk);
  Fixed fixed = parts_for(chunk);
  if (all_slots > budget - fixed.total() + fixed.transit.bytes()) {
    chunk = choose_chunk(model, options, n_ctx, level, spare, k_max_streamed_chunk);
    fixed = parts_for(chunk);
  }
  SLUICE_CHECK(fixed.total() <= budget);
  placement.embedding_on_drive = level.embedding_on_drive;
  placement.block_is_pinned.assign(model.blocks.size(), true);
  if (level.streams_blocks) place_blocks(model, budget - fixed.total(), placement, fixed);
  if (placement.n_ring_slots == 0) add_spare_ring(model, level, budget - fixed.total(), placement, fixed);
  place_experts(model, budget - fixed.total(), placement, fixed);

  plan.n_ctx = n_ctx;
  plan.max_sequences = options.max_sequences;
  const KvDemand demand = kv_demand(options, n_ctx, chunk);
  plan.kv_tokens = demand.n_tokens;
  plan.kv_type = model.kv_type;
  plan.rewind_tokens = model.rewind_tokens;
  for (const KvGroupFacts& group : model.kv_groups)
    placement.kv_pages.push_back(static_cast<std::uint32_t>(kv_pages(group, model.kv_page_tokens, demand)));
  plan.prefill_chunk = chunk;
  const std::uint32_t full_chunk = options.prefill_chunk != 0 ? chunk : std::min(k_max_chunk, n_ctx);
  plan.resident_from_bytes = fixed_parts(model, machine, options, n_ctx, full_chunk, {}).total() -
                             transit_slots(model).bytes() + all_slots + model.scratch_bytes(full_chunk);
  describe_plan(model,
                {fixed.process, fixed.draft, fixed.others, fixed.alignment, fixed.kv, fixed.state,
                 fixed.scratch, fixed.ring, fixed.transit.bytes()},
                placement);
  return placement;
}

}  // namespace sluice::residency
