#include <fmt/core.h>

#include <utility>

#include "cli/json_parts.hpp"

namespace sluice::cli {
namespace {

Json memory_json(const Stats& stats) {
  return {
      {"budget_bytes", stats.budget_bytes},
      {"rss_bytes", stats.rss_bytes},
      {"peak_rss_bytes", stats.peak_rss_bytes},
      {"swapped_bytes", stats.swapped_bytes},
      {"pinned_bytes", stats.pinned_bytes},
      {"kv_bytes", stats.kv_bytes},
      {"state_bytes", stats.state_bytes},
      {"scratch_bytes", stats.scratch_bytes},
      {"slot_bytes", stats.slot_bytes},
      {"ring_bytes", stats.ring_bytes},
      {"n_blocks_released", stats.n_blocks_released},
      {"n_blocks_returned", stats.n_blocks_returned},
      {"active_weight_bytes_per_token", stats.active_weight_bytes_per_token},
      {"weight_bytes", stats.weight_bytes},
      {"n_units", stats.n_units},
      {"n_slots", stats.n_slots},
      {"n_shrinks", stats.n_shrinks},
      {"n_grows", stats.n_grows},
  };
}

Json counts_json(const Stats& stats) {
  Json kernel_read_bytes = nullptr;
  if (stats.kernel_read_known) kernel_read_bytes = stats.kernel_read_bytes;
  return {
      {"n_hits", stats.n_hits},
      {"n_joins", stats.n_joins},
      {"n_misses", stats.n_misses},
      {"n_ahead", stats.n_ahead},
      {"n_ahead_used", stats.n_ahead_used},
      {"n_ahead_wasted", stats.n_ahead_wasted},
      {"n_preloaded", stats.n_preloaded},
      {"hit_rate", stats.hit_rate()},
      {"io_backend", stats.io_backend},
      {"read_bytes", stats.read_bytes()},
      {"load_read_bytes", stats.load_read_bytes},
      {"streamed_read_bytes", stats.streamed_read_bytes},
      {"kernel_read_bytes", std::move(kernel_read_bytes)},
      {"n_reads", stats.n_reads},
      {"n_read_retries", stats.n_read_retries},
      {"io_busy_ns", stats.io_busy_ns},
      {"read_bytes_per_second", stats.read_rate()},
      {"stall_ns", stats.stall_ns},
      {"open_ns", stats.open_ns},
  };
}

Json work_json(const Stats& stats) {
  return {
      {"n_prefill_tokens", stats.n_prefill_tokens},
      {"prefill_ns", stats.prefill_ns},
      {"prefill_tokens_per_second", stats.prefill_rate()},
      {"n_decode_tokens", stats.n_decode_tokens},
      {"decode_ns", stats.decode_ns},
      {"decode_tokens_per_second", stats.decode_rate()},
      {"n_decode_passes", stats.n_decode_passes},
      {"decode_tokens_per_pass", stats.tokens_per_pass()},
      {"n_speculative_passes", stats.n_speculative_passes},
      {"n_lookup_guessed", stats.lookup.n_guessed},
      {"n_lookup_accepted", stats.lookup.n_accepted},
      {"n_draft_guessed", stats.draft.n_guessed},
      {"n_draft_accepted", stats.draft.n_accepted},
      {"draft_ns", stats.draft_ns},
      {"n_threads", stats.n_threads},
      {"isa", stats.isa},
  };
}

Json drives_json(const Stats& stats) {
  Json drives = Json::array();
  for (const DriveStats& drive : stats.drives) {
    const bool is_profiled = drive.profiled_bytes_per_second > 0;
    drives.push_back(
        {{"file", drive.file},
         {"streamed_read_bytes", drive.streamed_read_bytes},
         {"busy_ns", drive.busy_ns},
         {"read_bytes_per_second", drive.read_rate()},
         {"n_failed_reads", drive.n_failed_reads},
         {"profiled_bytes_per_second", is_profiled ? Json(drive.profiled_bytes_per_second) : Json(nullptr)},
         {"profiled_at", is_profiled ? Json(drive.profiled_at) : Json(nullptr)}});
  }
  return drives;
}

}  // namespace

/// The library writes DEL and U+0080 to U+009F as they are; a terminal would obey them. They occur in strings
/// only, where JSON has a form for them.
std::string print(const Json& json) {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0x7f) {
      out += "\\u007f";
    } else if (byte == 0xc2 && next < 0xa0) {
      out += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

Json info_json(const ModelInfo& info) {
  return {
      {"path", info.path},
      {"name", info.name},
      {"architecture", info.architecture},
      {"quantization", info.quantization},
      {"n_parameters", info.n_parameters},
      {"file_bytes", info.file_bytes},
      {"n_layers", info.n_layers},
      {"n_embd", info.n_embd},
      {"n_experts", info.n_experts},
      {"n_experts_used", info.n_experts_used},
      {"n_ctx_train", info.n_ctx_train},
      {"n_vocab", info.n_vocab},
  };
}

Json plan_json(const Plan& plan) {
  Json items = Json::array();
  for (const PlanItem& item : plan.items) {
    items.push_back({{"what", item.what}, {"bytes", item.bytes}, {"tier", item.tier}, {"why", item.why}});
  }
  return {
      {"budget_bytes", plan.budget_bytes},
      {"budget_is_default", plan.budget_is_default},
      {"budget_source", plan.budget_source},
      {"floor_bytes", plan.floor_bytes},
      {"resident_from_bytes", plan.resident_from_bytes},
      {"planned_bytes", plan.planned_bytes},
      {"streamed_bytes", plan.streamed_bytes},
      {"dense_streamed_bytes", plan.dense_streamed_bytes},
      {"embedding_streamed_bytes", plan.embedding_streamed_bytes},
      {"fully_resident", plan.fully_resident()},
      {"n_ctx", plan.n_ctx},
      {"max_sequences", plan.max_sequences},
      {"kv_tokens", plan.kv_tokens},
      {"kv_type", plan.kv_type},
      {"prefill_chunk", plan.prefill_chunk},
      {"n_units", plan.n_units},
      {"n_cached_units", plan.n_cached_units},
      {"n_transit_units", plan.n_transit_units},
      {"unit_bytes", plan.unit_bytes},
      {"ring_bytes", plan.ring_bytes},
      {"n_dense_blocks", plan.n_dense_blocks},
      {"n_pinned_blocks", plan.n_pinned_blocks},
      {"items", std::move(items)},
  };
}

Json stats_json(const Stats& stats) {
  Json json = memory_json(stats);
  json.update(counts_json(stats));
  json.update(work_json(stats));
  json["drives"] = drives_json(stats);
  return json;
}

Json machine_json(const MachineInfo& machine, const MachineRates& rates) {
  return {
      {"cpu_model", machine.cpu_model},
      {"n_usable_cpus", machine.n_usable_cpus},
      {"memory_bytes", machine.memory_bytes},
      {"kernel", machine.kernel},
      {"isa", machine.isa},
      {"read_bytes_per_second", rates.read_bytes_per_second},
      {"read_threads", rates.n_threads},
      {"read_buffer_bytes", rates.buffer_bytes},
      {"read_passes", rates.n_passes},
      {"read_beyond_cache", rates.beyond_cache},
  };
}

}  // namespace sluice::cli
