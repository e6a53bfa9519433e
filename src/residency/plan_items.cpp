#include "residency/plan_items.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/units.hpp"

namespace sluice::residency {
namespace {

using base::format_bytes;

/// Of each role's always-used weights: what is not in memory.
using LeftOut = std::map<Role, std::uint64_t>;

const char* why_pinned(Role role) {
  switch (role) {
    case Role::token_embedding:
      return "one row per token";
    case Role::output_head:
      return "read whole for every token";
    default:
      return "used by every token";
  }
}

/// Returns the bytes of slots.
std::uint64_t count_units(const ModelFacts& model, Placement& placement) {
  Plan& plan = placement.plan;
  std::uint64_t cached_bytes = 0;
  for (std::size_t i = 0; i < placement.slots_per_layer.size(); ++i) {
    const ExpertLayerFacts& layer = model.expert_layers[i];
    plan.n_units += layer.n_experts;
    plan.n_cached_units += placement.slots_per_layer[i];
    plan.unit_bytes = std::max(plan.unit_bytes, layer.slot_bytes);
    cached_bytes += placement.slots_per_layer[i] * layer.slot_bytes;
    plan.streamed_bytes += (layer.n_experts - placement.slots_per_layer[i]) * layer.slot_bytes;
  }
  plan.n_transit_units = placement.transit_is_spare ? 0 : placement.n_transit;
  return cached_bytes;
}

LeftOut count_left_out(const ModelFacts& model, Placement& placement) {
  Plan& plan = placement.plan;
  LeftOut left_out;
  plan.n_dense_blocks = static_cast<std::uint32_t>(model.blocks.size());
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    plan.n_pinned_blocks += placement.block_is_pinned[i];
    if (!placement.block_is_pinned[i]) left_out[model.blocks[i].role] += model.blocks[i].bytes;
  }
  for (const auto& [role, bytes] : left_out) plan.dense_streamed_bytes += bytes;
  if (placement.embedding_on_drive) {
    plan.embedding_streamed_bytes = model.embedding_bytes;
    left_out[Role::token_embedding] = model.embedding_bytes;
  }
  for (const auto& [role, bytes] : left_out) plan.streamed_bytes += bytes;
  return left_out;
}

void add_models(const PlanParts& parts, Plan& plan) {
  plan.items.push_back({"process and vocabulary", parts.process, "ram", "program, tokenizer, thread stacks"});
  if (parts.draft != 0)
    plan.items.push_back({"draft model", parts.draft, "ram: pinned", "guesses tokens ahead"});
  if (parts.other_models != 0)
    plan.items.push_back({"other models", parts.other_models, "ram", "open in this process"});
}

void add_weights(const ModelFacts& model, const PlanParts& parts, const LeftOut& left_out, Plan& plan) {
  for (const auto& [role, bytes] : model.pinned_bytes) {
    const std::uint64_t in_memory = bytes - (left_out.count(role) != 0 ? left_out.at(role) : 0);
    if (in_memory != 0) plan.items.push_back({role_name(role), in_memory, "ram: pinned", why_pinned(role)});
  }
  if (parts.alignment != 0)
    plan.items.push_back({"alignment", parts.alignment, "ram: pinned", "direct reads fetch whole blocks"});
}

void add_work(const PlanParts& parts, Plan& plan) {
  const bool is_shared = plan.kv_tokens < std::uint64_t{plan.n_ctx} * plan.max_sequences;
  plan.items.push_back(
      {"KV cache", parts.kv, "ram: pinned",
       is_shared
           ? fmt::format("{} tokens of {} sequences, {}", plan.kv_tokens, plan.max_sequences, plan.kv_type)
           : fmt::format("{} tokens x {} sequence{}, {}", plan.n_ctx, plan.max_sequences,
                         plan.max_sequences == 1 ? "" : "s", plan.kv_type)});
  if (parts.state != 0) {
    plan.items.push_back({"recurrent state", parts.state, "ram: pinned",
                          fmt::format("of {} sequence{}, and what takes tokens back", plan.max_sequences,
                                      plan.max_sequences == 1 ? "" : "s")});
  }
  plan.items.push_back(
      {"scratch", parts.scratch, "ram", fmt::format("passes of up to {} rows", plan.prefill_chunk)});
}

void add_streams(const PlanParts& parts, std::uint64_t cached_bytes, const Placement& placement, Plan& plan) {
  if (plan.n_units != 0) {
    plan.items.push_back({"expert slots", cached_bytes, "ram: cached",
                          fmt::format("{} of {} experts", plan.n_cached_units, plan.n_units)});
  }
  if (parts.transit != 0) {
    plan.items.push_back({"transit slots", parts.transit, "ram",
                          fmt::format("{} experts pass through", plan.n_transit_units)});
  }
  if (placement.n_ring_slots != 0) {
    plan.items.push_back({"ring", parts.ring, "ram",
                          placement.ring_is_spare ? "taken only when memory gets short"
                                                  : fmt::format("{} of {} always-used blocks pass through",
                                                                plan.n_dense_blocks - plan.n_pinned_blocks,
                                                                plan.n_dense_blocks)});
  }
}

}  // namespace

void describe_plan(const ModelFacts& model, const PlanParts& parts, Placement& placement) {
  Plan& plan = placement.plan;
  const std::uint64_t cached_bytes = count_units(model, placement);
  const std::uint64_t streamed_expert_bytes = plan.streamed_bytes;
  const LeftOut left_out = count_left_out(model, placement);
  plan.ring_bytes = parts.ring;
  add_models(parts, plan);
  add_weights(model, parts, left_out, plan);
  add_work(parts, plan);
  add_streams(parts, cached_bytes, placement, plan);
  for (const PlanItem& item : plan.items) plan.planned_bytes += item.bytes;
  if (streamed_expert_bytes != 0) {
    plan.items.push_back({"streamed experts", 0, "disk",
                          fmt::format("{} read on demand", format_bytes(streamed_expert_bytes))});
  }
  for (const auto& [role, bytes] : left_out) {
    const char* when = role == Role::token_embedding ? ", a row read for each token" : " read in every pass";
    plan.items.push_back(
        {fmt::format("streamed {}", role_name(role)), 0, "disk", format_bytes(bytes) + when});
  }
}

}  // namespace sluice::residency
