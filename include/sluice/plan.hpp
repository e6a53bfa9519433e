#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// What a tensor is used for; decides where its bytes live.
enum class Role {
  token_embedding,
  output_head,
  norm,
  attention,
  router,
  expert,
  shared_expert,
  dense_ffn,
  rope_table,
  other,
};
const char* role_name(Role role) noexcept;

/// One line of a memory plan.
struct PlanItem {
  std::string what;         ///< "attention", "expert slots", "KV cache", ...
  std::uint64_t bytes = 0;  ///< RAM this item takes.
  std::string tier;         ///< "ram: pinned", "ram: cached", "disk".
  std::string why;
};

/// The memory plan: what lies where under a budget. Made by a pure function of the model's facts, the
/// machine's facts and the options; nothing is loaded to make it.
struct Plan {
  std::uint64_t budget_bytes = 0;
  bool budget_is_default = false;         ///< Taken from the machine rather than asked for.
  std::string budget_source;              ///< "--memory", "cgroup /x", "MemAvailable", ...
  std::uint64_t floor_bytes = 0;          ///< Smallest budget this model and context can run in.
  std::uint64_t resident_from_bytes = 0;  ///< The least budget that keeps all weights in memory.
  std::uint64_t planned_bytes = 0;        ///< Sum of all items.
  std::vector<PlanItem> items;
  std::uint32_t n_ctx = 0;
  std::uint32_t max_sequences = 1;
  std::uint64_t kv_tokens = 0;        ///< Tokens of all sequences together that the KV cache has room for.
  std::string kv_type;                ///< How it keeps them: "f16" or "q8_0".
  std::uint32_t rewind_tokens = 0;    ///< Tokens of its last pass that a sequence can always take back.
  std::uint32_t prefill_chunk = 0;    ///< Rows of the largest pass.
  std::uint64_t n_units = 0;          ///< Experts of all layers.
  std::uint64_t n_cached_units = 0;   ///< Slots that keep experts between tokens.
  std::uint64_t n_transit_units = 0;  ///< Slots that experts only pass through.
  std::uint64_t unit_bytes = 0;       ///< Largest expert.
  std::uint64_t streamed_bytes = 0;   ///< Weights that do not fit and stay on the drive.
  /// Always-used weights that are read anew in every pass; 0 when all of them stay.
  std::uint64_t dense_streamed_bytes = 0;
  /// Token embeddings that are not in memory: a pass reads a row of them for each of its tokens.
  std::uint64_t embedding_streamed_bytes = 0;
  /// What they pass through. Where none are streamed: what is kept for the time that memory gets short.
  std::uint64_t ring_bytes = 0;
  std::uint32_t n_dense_blocks = 0;   ///< Attention and feed-forward parts of layers that could be streamed.
  std::uint32_t n_pinned_blocks = 0;  ///< Those of them that stay.
  bool fully_resident() const noexcept { return streamed_bytes == 0; }
};

}  // namespace sluice
