#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "residency/dense_plan.hpp"
#include "residency/kv_plan.hpp"
#include "sluice/options.hpp"
#include "sluice/plan.hpp"

namespace sluice::residency {

/// The experts of one layer as the planner sees them.
struct ExpertLayerFacts {
  std::uint32_t n_experts = 0;
  std::uint32_t n_used = 0;
  std::uint64_t slot_bytes = 0;  ///< One expert with its read windows.
};

struct ModelFacts {
  /// Always-used weights by role, as they lie in memory (read windows included in the last entry,
  /// "alignment").
  std::vector<std::pair<Role, std::uint64_t>> pinned_bytes;
  std::uint64_t alignment_bytes = 0;  ///< What read windows add to the pinned weights.
  std::vector<ExpertLayerFacts> expert_layers;
  /// Parts of pinned_bytes that need not stay when memory is short: matrices that can pass through a ring,
  /// in the order of their use, and the token embeddings, of which a token needs one row (0 when they are
  /// the output matrix too).
  std::vector<DenseBlockFacts> blocks;
  std::uint64_t ring_slot_bytes = 0;
  std::uint64_t embedding_bytes = 0;
  /// Memory of the rows of embeddings that a pass of n rows needs.
  std::function<std::uint64_t(std::uint32_t n_rows)> gather_bytes;
  std::uint64_t split_bytes = 0;  ///< What read windows add at most when parts of pinned_bytes are left out.
  std::vector<KvGroupFacts> kv_groups;
  std::uint32_t kv_page_tokens = 1;
  std::string kv_type = "f16";                 ///< For people.
  std::uint64_t state_bytes = 0;               ///< Of a sequence, beside its KV cache, whatever its length.
  std::uint32_t rewind_tokens = k_max_rewind;  ///< See Plan.
  std::uint32_t n_ctx_train = 0;
  /// What the runtime allocates by itself after the plan is made: lists of units, candidates of a sampler.
  std::uint64_t bookkeeping_bytes = 0;
  /// Bytes of activations and scratch for passes of n rows; grows with n.
  std::function<std::uint64_t(std::uint32_t n_rows)> scratch_bytes;
};

struct MachineFacts {
  std::uint64_t default_budget_bytes = 0;
  std::string default_budget_source;
  std::uint64_t process_bytes = 0;  ///< Program, vocabulary, thread stacks: all that is not planned below.
  std::uint64_t draft_bytes = 0;    ///< What the plan of an open draft model has taken of the budget.
  std::uint64_t other_bytes = 0;    ///< The same of other models that are open in this process.
  /// What no budget can exceed, and what says so: the machine, or a group. 0 when it is not known.
  std::uint64_t total_bytes = 0;
  std::string total_source;
  std::uint64_t free_bytes = 0;  ///< What this process could take now, with what it has. 0: not known.
};

/// A plan and what the engine needs to carry it out.
struct Placement {
  Plan plan;
  std::vector<std::uint32_t> slots_per_layer;  ///< For each expert layer: slots that keep experts.
  std::uint32_t n_transit = 0;                 ///< Slots all layers share; experts only pass through.
  std::uint64_t transit_slot_bytes = 0;
  /// All experts have slots of their own, and transit slots take memory only after some of them gave theirs.
  bool transit_is_spare = false;
  std::vector<bool> block_is_pinned;  ///< For each of ModelFacts::blocks.
  std::uint32_t n_ring_slots = 0;     ///< 0: blocks stay where they are.
  bool ring_is_spare = false;         ///< All blocks are pinned; the ring takes memory when some give way.
  bool embedding_on_drive = false;
  std::vector<std::uint32_t> kv_pages;  ///< For each of ModelFacts::kv_groups.
};

// Limits of the planner.
constexpr std::uint32_t k_max_chunk = 512;  ///< Rows of the largest pass the planner chooses by itself.
/// The same where experts are streamed: all are read once a pass, for as many rows as possible.
constexpr std::uint32_t k_max_streamed_chunk = 2048;
constexpr std::uint32_t k_min_chunk = 4;
constexpr std::uint32_t k_comfort_chunk =
    128;  ///< A dense model is kept whole only if such passes fit beside it.
constexpr std::uint32_t k_default_ctx = 4096;
constexpr std::uint32_t k_min_auto_ctx =
    512;  ///< The planner shrinks a context nobody asked for down to this.
constexpr std::uint32_t k_extra_transit = 2;  ///< Transit slots beyond one token's experts, so reads go on.
constexpr std::uint32_t k_min_ring_slots = 4;
constexpr std::uint64_t k_wanted_ring_bytes = std::uint64_t{64}
                                              << 20;                  ///< Wanted: bridges the output matrix.
constexpr std::uint64_t k_max_ring_bytes = std::uint64_t{128} << 20;  ///< With what nothing else can use.
/// Embeddings below this leave memory only when the model would not fit otherwise.
constexpr std::uint64_t k_min_drive_embedding = std::uint64_t{16} << 20;

/// Makes the memory plan: pure. Order: process, KV, always-used weights, scratch, transit slots, then the
/// rest of the budget for expert slots, spread evenly over the layers. What does not fit leaves in this
/// order: experts, token embeddings, feed-forward blocks, attention blocks. Throws Error(budget) when the
/// floors do not fit; the message says the floor, who takes what, and the nearest budget that works. Throws
/// Error(invalid_argument) for a context beyond the model's.
Placement make_plan(const ModelFacts& model, const MachineFacts& machine, const OpenOptions& options);

}  // namespace sluice::residency
