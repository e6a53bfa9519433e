#include "residency/plan.hpp"

#include <fmt/core.h>

#include <algorithm>
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

/// Everything but expert slots and scratch.
struct Fixed {
  std::uint64_t process = 0, pinned = 0, kv = 0;
  Transit transit;
  std::uint64_t total() const { return process + pinned + kv + transit.bytes(); }
};

Fixed fixed_parts(const ModelFacts& model, const MachineFacts& machine, std::uint32_t n_ctx,
                  std::uint32_t n_sequences) {
  return {machine.process_bytes, pinned_total(model), pages_bytes(model, n_ctx, n_sequences),
          transit_slots(model)};
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
  // Nobody asked: halve until the cache takes at most a quarter of what is left beside the weights.
  std::uint32_t n_ctx = std::min(trained, k_default_ctx);
  const std::uint64_t weights = machine.process_bytes + pinned_total(model) + transit_slots(model).bytes();
  const std::uint64_t spare = budget > weights ? budget - weights : 0;
  while (n_ctx > k_min_auto_ctx && pages_bytes(model, n_ctx, options.max_sequences) > spare / 4) {
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
      "(process and vocabulary {}, always-used weights {}, KV cache {}, scratch {}, {} expert slots {}). "
      "Give --memory {}M or more{}",
      format_bytes(budget), source, format_bytes(floor), floor, n_ctx, format_bytes(fixed.process),
      format_bytes(fixed.pinned), format_bytes(fixed.kv), format_bytes(scratch), fixed.transit.n_slots,
      format_bytes(fixed.transit.bytes()), (floor + base::k_mib - 1) / base::k_mib,
      n_ctx > k_min_auto_ctx ? ", or a smaller --ctx" : "");
}

std::uint32_t choose_chunk(const ModelFacts& model, const OpenOptions& options, std::uint32_t n_ctx,
                           std::uint64_t spare) {
  if (options.prefill_chunk != 0) return std::min(options.prefill_chunk, n_ctx);
  // A larger pass reads each streamed expert for more rows; an eighth of what is left is worth that. The
  // scratch is linear in the rows, so the choice moves smoothly with the budget.
  std::uint32_t low = k_min_chunk, high = std::min(k_max_chunk, std::max(n_ctx, k_min_chunk));
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (model.scratch_bytes(middle) <= spare / 8) {
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

}  // namespace

Placement make_plan(const ModelFacts& model, const MachineFacts& machine, const OpenOptions& options) {
  const bool is_default = options.memory_bytes == 0;
  const std::uint64_t budget = is_default ? machine.default_budget_bytes : options.memory_bytes;
  const std::string source = is_default ? machine.default_budget_source : "--memory";
  const std::uint32_t n_ctx = choose_context(model, machine, options, budget);
  Fixed fixed = fixed_parts(model, machine, n_ctx, options.max_sequences);
  const std::uint32_t floor_chunk =
      options.prefill_chunk != 0 ? std::min(options.prefill_chunk, n_ctx) : std::min(k_min_chunk, n_ctx);
  const std::uint64_t floor = fixed.total() + model.scratch_bytes(floor_chunk);
  if (budget < floor) refuse(fixed, model.scratch_bytes(floor_chunk), budget, floor, source, n_ctx);

  const std::uint64_t spare = budget - fixed.total();
  const std::uint32_t chunk = choose_chunk(model, options, n_ctx, spare);
  const std::uint64_t scratch = model.scratch_bytes(chunk);
  std::uint64_t slot_budget = spare - scratch;
  const std::uint64_t all_slots = all_slots_bytes(model);
  Placement placement;
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
  plan.resident_bytes = fixed.process + fixed.pinned + fixed.kv + all_slots + model.scratch_bytes(full_chunk);
  std::uint64_t cached_bytes = 0;
  for (std::size_t i = 0; i < placement.slots_per_layer.size(); ++i) {
    const auto& layer = model.expert_layers[i];
    plan.n_units += layer.n_experts;
    plan.n_cached_units += placement.slots_per_layer[i];
    plan.unit_bytes = std::max(plan.unit_bytes, layer.slot_bytes);
    cached_bytes += placement.slots_per_layer[i] * layer.slot_bytes;
    plan.streamed_bytes += (layer.n_experts - placement.slots_per_layer[i]) * layer.slot_bytes;
  }
  plan.n_transit_units = placement.n_transit;

  plan.items.push_back({"process and vocabulary", fixed.process, "ram", "program, tokenizer, thread stacks"});
  for (const auto& [role, bytes] : model.pinned_bytes) {
    plan.items.push_back({role_name(role), bytes, "ram: pinned", why_pinned(role)});
  }
  if (model.alignment_bytes != 0) {
    plan.items.push_back(
        {"alignment", model.alignment_bytes, "ram: pinned", "direct reads fetch whole blocks"});
  }
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
  for (const auto& item : plan.items) plan.planned_bytes += item.bytes;
  if (plan.streamed_bytes != 0) {
    plan.items.push_back(
        {"streamed experts", 0, "disk", fmt::format("{} read on demand", format_bytes(plan.streamed_bytes))});
  }
  return placement;
}

}  // namespace sluice::residency
