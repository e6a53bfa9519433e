#include "residency/plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::residency {
namespace {

using base::format_bytes;

std::uint64_t pages_bytes(const ModelFacts& model, std::uint32_t n_ctx, std::uint32_t n_sequences) {
  const std::uint64_t n_pages = (std::uint64_t{n_ctx} + model.kv_page_tokens - 1) / model.kv_page_tokens;
  return n_pages * model.kv_page_bytes * n_sequences;
}

std::uint64_t pinned_total(const ModelFacts& model) {
  std::uint64_t total = model.alignment_bytes;
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

/// Everything but expert slots and scratch. With streamed blocks: as if none of them were pinned.
struct Fixed {
  std::uint64_t process = 0, pinned = 0, kv = 0, ring = 0;
  Transit transit;
  std::uint64_t draft = 0;
  std::uint64_t total() const { return process + draft + pinned + kv + ring + transit.bytes(); }
};

Fixed fixed_parts(const ModelFacts& model, const MachineFacts& machine, std::uint32_t n_ctx,
                  std::uint32_t n_sequences, Level level) {
  Fixed fixed{machine.process_bytes, pinned_total(model), pages_bytes(model, n_ctx, n_sequences), 0,
              transit_slots(model),  machine.draft_bytes};
  if (level.embedding_on_drive || level.streams_blocks) fixed.pinned += model.split_bytes;
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
        fixed_parts(model, machine, std::min(n_ctx, k_min_auto_ctx), options.max_sequences, level).total();
    return budget > taken ? budget - taken : 0;
  };
  std::uint64_t most = room({}) / 4;
  if (most == 0) most = room(levels_of(model).back()) / 8;
  while (n_ctx > k_min_auto_ctx && pages_bytes(model, n_ctx, options.max_sequences) > most) {
    n_ctx = std::max(k_min_auto_ctx, n_ctx / 2);
  }
  return n_ctx;
}

[[noreturn]] void refuse(const Fixed& fixed, std::uint64_t scratch, std::uint64_t budget, std::uint64_t floor,
                         const std::string& source, std::uint32_t n_ctx) {
  base::fail(
      ErrorCode::budget,
      "the memory budget of {} ({}) is too small: this model needs at least {} ({} bytes) with a context of "
      "{} tokens "
      "(process and vocabulary {}, {}weights that must stay {}, KV cache {}, scratch {}, {} expert slots {}, "
      "ring of streamed weights {}). Give --memory {}M or more{}",
      format_bytes(budget), source, format_bytes(floor), floor, n_ctx, format_bytes(fixed.process),
      fixed.draft == 0 ? std::string() : fmt::format("draft model {}, ", format_bytes(fixed.draft)),
      format_bytes(fixed.pinned), format_bytes(fixed.kv), format_bytes(scratch), fixed.transit.n_slots,
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
  std::uint32_t low = k_min_chunk, high = std::min(max_chunk, std::max(n_ctx, k_min_chunk));
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (scratch_bytes(model, level, middle) <= most) {
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

const char* why_pinned(Role role) {
  switch (role) {
    case Role::token_embedding:
      return "one row per token";
    case Role::output_head:
      return "read whole for every token";
    case Role::shared_expert:
      return "used by every token";
    default:
      return "used by every token";
  }
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
    return fixed_parts(model, machine, n_ctx, options.max_sequences, level).total() +
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
    refuse(fixed_parts(model, machine, n_ctx, options.max_sequences, lowest),
           scratch_bytes(model, lowest, chunk_of(k_min_chunk)), budget, floor, source, n_ctx);
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
  std::uint64_t n_slots =
      std::max<std::uint64_t>(k_min_ring_slots, std::min(k_ring_bytes, (bytes + fixed.ring) / 16) / slot);
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

}  // namespace

Placement make_plan(const ModelFacts& model, const MachineFacts& machine, const OpenOptions& options) {
  const bool is_default = options.memory_bytes == 0;
  const std::uint64_t budget = is_default ? machine.default_budget_bytes : options.memory_bytes;
  const std::string source = is_default ? machine.default_budget_source : "--memory";
  const std::uint32_t n_ctx = choose_context(model, machine, options, budget);
  std::uint64_t floor = 0;
  const Level level = choose_level(model, machine, options, budget, source, n_ctx, floor);
  Fixed fixed = fixed_parts(model, machine, n_ctx, options.max_sequences, level);

  std::uint64_t spare = budget - fixed.total();
  const std::uint64_t all_slots = all_slots_bytes(model);
  std::uint32_t chunk = choose_chunk(model, options, n_ctx, level, spare, k_max_chunk);
  std::uint64_t scratch = scratch_bytes(model, level, chunk);
  if (all_slots > spare - scratch + fixed.transit.bytes()) {
    chunk = choose_chunk(model, options, n_ctx, level, spare, k_max_streamed_chunk);
    scratch = scratch_bytes(model, level, chunk);
  }
  Placement placement;
  placement.embedding_on_drive = level.embedding_on_drive;
  placement.block_is_pinned.assign(model.blocks.size(), true);
  if (level.streams_blocks) {
    const std::uint64_t before = fixed.total();
    place_blocks(model, spare - scratch, placement, fixed);
    spare -= fixed.total() - before;
  }
  const std::uint64_t slot_budget = spare - scratch;
  if (all_slots <= slot_budget + fixed.transit.bytes()) {
    // Everything stays: nothing passes through, so the shared slots are not needed.
    fixed.transit = {};
    for (const auto& layer : model.expert_layers) placement.slots_per_layer.push_back(layer.n_experts);
  } else {
    placement.slots_per_layer = share_slots(model, slot_budget);
  }
  placement.n_transit = fixed.transit.n_slots;
  placement.transit_slot_bytes = fixed.transit.slot_bytes;

  Plan& plan = placement.plan;
  plan.budget_bytes = budget;
  plan.budget_is_default = is_default;
  plan.budget_source = source;
  plan.floor_bytes = floor;
  plan.n_ctx = n_ctx;
  plan.max_sequences = options.max_sequences;
  plan.prefill_chunk = chunk;
  const std::uint32_t full_chunk = options.prefill_chunk != 0 ? chunk : std::min(k_max_chunk, n_ctx);
  plan.resident_bytes = fixed_parts(model, machine, n_ctx, options.max_sequences, {}).total() -
                        transit_slots(model).bytes() + all_slots + model.scratch_bytes(full_chunk);
  std::uint64_t cached_bytes = 0;
  for (std::size_t i = 0; i < placement.slots_per_layer.size(); ++i) {
    const auto& layer = model.expert_layers[i];
    plan.n_units += layer.n_experts;
    plan.n_cached_units += placement.slots_per_layer[i];
    plan.unit_bytes = std::max(plan.unit_bytes, layer.slot_bytes);
    cached_bytes += placement.slots_per_layer[i] * layer.slot_bytes;
    plan.streamed_bytes += (layer.n_experts - placement.slots_per_layer[i]) * layer.slot_bytes;
  }
  const std::uint64_t streamed_expert_bytes = plan.streamed_bytes;
  plan.n_transit_units = placement.n_transit;
  plan.n_dense_blocks = static_cast<std::uint32_t>(model.blocks.size());
  plan.ring_bytes = fixed.ring;
  std::map<Role, std::uint64_t> left_out;  // Of each role's always-used weights: what is not in memory.
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    plan.n_pinned_blocks += placement.block_is_pinned[i];
    if (!placement.block_is_pinned[i]) left_out[model.blocks[i].role] += model.blocks[i].bytes;
  }
  for (const auto& [role, bytes] : left_out) plan.dense_streamed_bytes += bytes;
  if (level.embedding_on_drive) {
    plan.embedding_streamed_bytes = model.embedding_bytes;
    left_out[Role::token_embedding] = model.embedding_bytes;
  }
  for (const auto& [role, bytes] : left_out) plan.streamed_bytes += bytes;

  plan.items.push_back({"process and vocabulary", fixed.process, "ram", "program, tokenizer, thread stacks"});
  if (fixed.draft != 0) {
    plan.items.push_back({"draft model", fixed.draft, "ram: pinned", "guesses tokens ahead"});
  }
  for (const auto& [role, bytes] : model.pinned_bytes) {
    const std::uint64_t in_memory = bytes - (left_out.count(role) != 0 ? left_out.at(role) : 0);
    if (in_memory != 0) plan.items.push_back({role_name(role), in_memory, "ram: pinned", why_pinned(role)});
  }
  const std::uint64_t alignment_bytes = model.alignment_bytes + (left_out.empty() ? 0 : model.split_bytes);
  if (alignment_bytes != 0)
    plan.items.push_back({"alignment", alignment_bytes, "ram: pinned", "direct reads fetch whole blocks"});
  plan.items.push_back({"KV cache", fixed.kv, "ram: pinned",
                        fmt::format("{} tokens x {} sequence{}, f16", n_ctx, options.max_sequences,
                                    options.max_sequences == 1 ? "" : "s")});
  plan.items.push_back({"scratch", scratch, "ram", fmt::format("passes of up to {} rows", chunk)});
  if (plan.n_units != 0) {
    plan.items.push_back({"expert slots", cached_bytes, "ram: cached",
                          fmt::format("{} of {} experts", plan.n_cached_units, plan.n_units)});
    if (placement.n_transit != 0) {
      plan.items.push_back({"transit slots", fixed.transit.bytes(), "ram",
                            fmt::format("{} experts pass through", placement.n_transit)});
    }
  }
  if (placement.n_ring_slots != 0) {
    plan.items.push_back({"ring", fixed.ring, "ram",
                          fmt::format("{} of {} always-used blocks pass through",
                                      plan.n_dense_blocks - plan.n_pinned_blocks, plan.n_dense_blocks)});
  }
  for (const auto& item : plan.items) plan.planned_bytes += item.bytes;
  if (streamed_expert_bytes != 0) {
    plan.items.push_back({"streamed experts", 0, "disk",
                          fmt::format("{} read on demand", format_bytes(streamed_expert_bytes))});
  }
  for (const auto& [role, bytes] : left_out) {
    const char* when = role == Role::token_embedding ? ", a row read for each token" : " read in every pass";
    plan.items.push_back(
        {fmt::format("streamed {}", role_name(role)), 0, "disk", format_bytes(bytes) + when});
  }
  return placement;
}

}  // namespace sluice::residency
