#include "cli/json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sluice/version.hpp"

// The only file of the program that sees the JSON library.
namespace sluice::cli {
namespace {

// Keys in the order written here, so that people can read it too.
using Json = nlohmann::ordered_json;

std::string print(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
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
      {"resident_bytes", plan.resident_bytes},
      {"planned_bytes", plan.planned_bytes},
      {"streamed_bytes", plan.streamed_bytes},
      {"dense_streamed_bytes", plan.dense_streamed_bytes},
      {"embedding_streamed_bytes", plan.embedding_streamed_bytes},
      {"fully_resident", plan.fully_resident()},
      {"n_ctx", plan.n_ctx},
      {"max_sequences", plan.max_sequences},
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
  Json json = {
      {"budget_bytes", stats.budget_bytes},
      {"rss_bytes", stats.rss_bytes},
      {"peak_rss_bytes", stats.peak_rss_bytes},
      {"pinned_bytes", stats.pinned_bytes},
      {"kv_bytes", stats.kv_bytes},
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
      {"unit_read_bytes", stats.unit_read_bytes},
  };
  json["kernel_read_bytes"] = stats.kernel_read_known ? Json(stats.kernel_read_bytes) : Json(nullptr);
  json.update({
      {"n_reads", stats.n_reads},
      {"n_read_retries", stats.n_read_retries},
      {"io_busy_ns", stats.io_busy_ns},
      {"read_bytes_per_second", stats.read_rate()},
      {"stall_ns", stats.stall_ns},
      {"open_ns", stats.open_ns},
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
  });
  Json drives = Json::array();
  for (const DriveStats& drive : stats.drives) {
    const bool is_profiled = drive.profiled_bytes_per_second > 0;
    drives.push_back(
        {{"file", drive.file},
         {"unit_read_bytes", drive.unit_read_bytes},
         {"busy_ns", drive.busy_ns},
         {"read_bytes_per_second", drive.read_rate()},
         {"n_failed_reads", drive.n_failed_reads},
         {"profiled_bytes_per_second", is_profiled ? Json(drive.profiled_bytes_per_second) : Json(nullptr)},
         {"profiled_at", is_profiled ? Json(drive.profiled_at) : Json(nullptr)}});
  }
  json["drives"] = std::move(drives);
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

// Flat and one figure a line, so that a script can pick figures without a JSON parser.
Json test_json(const BenchReport& report, const BenchTest& test) {
  const auto fraction = report.fraction_of_bound(test);
  const auto predicted = [&test](const PassPrediction BenchPrediction::*which) -> Json {
    if (!test.prediction) return nullptr;
    return ((*test.prediction).*which).tokens_per_second;
  };
  return {
      {"test", test.name},
      {"kind", test.is_prefill ? "prefill" : "decode"},
      {"n_tokens", test.n_tokens},
      {"depth", test.depth},
      {"tokens_per_second", test.median()},
      {"min_tokens_per_second", test.min()},
      {"max_tokens_per_second", test.max()},
      {"spread", test.spread()},
      {"noisy", test.noisy()},
      {"samples_tokens_per_second", test.rates},
      {"ms_per_token", test.ms_per_token()},
      {"elapsed_ns", test.elapsed_ns},
      {"weight_bytes_per_token", test.weight_bytes_per_token()},
      {"memory_bytes_per_second", test.memory_rate()},
      {"fraction_of_bound", fraction ? Json(*fraction) : Json(nullptr)},
      {"drive_bytes_per_token", test.drive_bytes_per_token()},
      {"drive_bytes_per_second", test.drive_rate()},
      {"n_hits", test.n_hits},
      {"n_joins", test.n_joins},
      {"n_misses", test.n_misses},
      {"n_ahead", test.n_ahead},
      {"n_ahead_used", test.n_ahead_used},
      {"hit_rate", test.hit_rate()},
      {"stall_share", test.stall_share()},
      {"busy_share", test.busy_share()},
      {"predicted_tokens_per_second", predicted(&BenchPrediction::even)},
      {"predicted_at_hit_rate_tokens_per_second", predicted(&BenchPrediction::at_hit_rate)},
      {"predicted_limit", test.prediction ? Json(test.prediction->at_hit_rate.limit) : Json(nullptr)},
  };
}

Json read_rate_json(const std::optional<ReadRate>& rate) {
  if (!rate) return nullptr;
  return {{"block_bytes", rate->block_bytes},
          {"depth", rate->depth},
          {"bytes_per_second", rate->bytes_per_second}};
}

Json drive_json(const DriveProfile& profile) {
  const DriveInfo& drive = profile.drive;
  Json random = Json::array();
  for (const ReadRate& rate : profile.random) random.push_back(read_rate_json(rate));
  Json rotational = nullptr;
  if (drive.is_rotational) rotational = *drive.is_rotational;
  return {
      {"name", drive.name},
      {"model", drive.model},
      {"serial", drive.serial},
      {"file_system", drive.file_system},
      {"rotational", rotational},
      {"size_bytes", drive.size_bytes},
      {"members", drive.members},
      {"file", profile.file},
      {"file_bytes", profile.file_bytes},
      {"backend", profile.backend},
      {"read_bytes", profile.read_bytes},
      {"caveat", profile.caveat},
      {"measured_at", profile.measured_at},
      {"best", read_rate_json(best(profile.random))},
      {"knee", read_rate_json(knee(profile.random))},
      {"sequential", read_rate_json(profile.sequential)},
      {"random", std::move(random)},
  };
}

Json pass_json(const PassPrediction& pass) {
  if (pass.tokens_per_second <= 0) return nullptr;
  return {
      {"tokens_per_second", pass.tokens_per_second},
      {"token_ns", pass.token_ns},
      {"drive_ns", pass.drive_ns},
      {"memory_ns", pass.memory_ns},
      {"compute_ns", pass.compute_ns},
      {"drive_bytes", pass.drive_bytes},
      {"hit_rate", pass.hit_rate},
      {"limit", pass.limit},
  };
}

Json prediction_json(const Prediction& prediction) {
  return {
      {"prefill", pass_json(prediction.prefill)},
      {"decode", pass_json(prediction.decode)},
      {"answer_seconds", prediction.answer_seconds},
  };
}

Json range_json(const std::optional<PredictionRange>& range) {
  if (!range) return nullptr;
  const std::optional<Prediction>& heat = range->heat;
  return {
      {"n_prompt_tokens", range->typical.workload.n_prompt},
      {"n_answer_tokens", range->typical.workload.n_answer},
      {"low", prediction_json(range->low)},
      {"typical", prediction_json(range->typical)},
      {"high", prediction_json(range->high)},
      {"heat", heat ? prediction_json(*heat) : Json(nullptr)},
      {"heat_tokens", heat ? Json(std::llround(heat->workload.heat->n_tokens)) : Json(nullptr)},
  };
}

Json outlook_json(const PlanOutlook& outlook) {
  const PlanReport& report = outlook.report;
  Json choices = Json::array();
  for (std::size_t i = 0; i < report.choices.size(); ++i) {
    const PlanChoice& choice = report.choices[i];
    choices.push_back({
        {"memory_bytes", choice.memory_bytes},
        {"refusal", choice.refusal},
        {"needed_bytes", choice.needed_bytes},
        {"plan", choice.plan ? plan_json(*choice.plan) : Json(nullptr)},
        {"prediction", range_json(outlook.predictions[i])},
    });
  }
  return {
      {"source", report.source},
      {"name", report.name},
      {"architecture", report.architecture},
      {"n_parameters", report.n_parameters},
      {"file_bytes", report.file_bytes},
      {"missing_bytes", report.missing_bytes},
      {"weight_bytes_per_token", report.work.bytes_per_token()},
      {"sim_ram_bytes", outlook.sim_ram_bytes},
      {"sim_vram_bytes", outlook.sim_vram_bytes},
      {"sim_disk_bytes_per_second", outlook.sim_disk},
      {"memory_bytes_per_second", outlook.known.rates.memory_bytes},
      {"notes", outlook.known.notes},
      {"choices", std::move(choices)},
  };
}

}  // namespace

std::string plan_report_json(const PlanOutlook& outlook) {
  Json json = {{"version", version()}};
  json.update(outlook_json(outlook));
  return print(json);
}

std::string doctor_json(const DoctorReport& report) {
  Json findings = Json::array();
  for (const Finding& finding : report.findings) {
    findings.push_back({{"severity", severity_name(finding.severity)},
                        {"topic", finding.topic},
                        {"text", finding.text},
                        {"cure", finding.cure}});
  }
  return print({
      {"version", version()},
      {"has_problem", report.has_problem()},
      {"findings", std::move(findings)},
      {"outlook", report.outlook ? outlook_json(*report.outlook) : Json(nullptr)},
  });
}

std::string replay_json(const ReplayReport& report) {
  const RoutingTrace& trace = report.trace;
  Json rows = Json::array();
  for (const ReplayReport::Row& row : report.rows) {
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const ReplayCell& cell = row.cells[i];
      rows.push_back(
          {{"policy", replay_policy_name(row.policy)},
           {"n_slots", report.sizes[i].n_slots},
           {"share", report.share(i)},
           {"n_hits", cell.n_hits},
           {"n_wanted", cell.n_wanted},
           {"hit_rate", cell.hit_rate()},
           {"missed_bytes", trace.expert_bytes.empty() ? Json(nullptr) : Json(cell.missed_bytes)}});
    }
  }
  return print({
      {"version", version()},
      {"trace", trace.path},
      {"format", trace.format},
      {"model", trace.model},
      {"architecture", trace.architecture},
      {"n_layers", trace.n_layers},
      {"n_experts", trace.n_experts},
      {"n_experts_used", trace.n_used},
      {"n_tokens", trace.n_tokens()},
      {"n_prompt_tokens", report.n_prompt_tokens()},
      {"n_warm_up_tokens", report.n_warm_up},
      {"n_counted_tokens", report.n_counted()},
      {"results", std::move(rows)},
  });
}

std::string bench_json(const BenchReport& report) {
  Json tests = Json::array();
  bool noisy = false;
  for (const BenchTest& test : report.tests) {
    tests.push_back(test_json(report, test));
    noisy = noisy || test.noisy();
  }
  Json json = {
      {"version", version()},
      {"build", build_facts()},
      {"date", report.date},
      {"machine", machine_json(report.machine, report.rates)},
      {"n_threads", report.stats.n_threads},
      {"n_repetitions", report.n_repetitions},
      {"n_warmup", report.n_warmup},
      {"noisy", noisy},
      {"tests", std::move(tests)},
      {"model", info_json(report.info)},
      {"stats", stats_json(report.stats)},
      {"plan", plan_json(report.plan)},
  };
  return print(json);
}

std::string profile_json(const ProfileReport& report) {
  Json drives = Json::array();
  for (const DriveProfile& drive : report.profile.drives) drives.push_back(drive_json(drive));
  Json machine = nullptr, kernels = Json::array();
  if (const auto& measured = report.profile.machine) {
    machine = machine_json(measured->machine, measured->memory);
    machine["measured_at"] = measured->measured_at;
    for (const KernelRate& kernel : measured->kernels) {
      kernels.push_back({{"type", kernel.type},
                         {"n_rows", kernel.n_rows},
                         {"products_per_second", kernel.products_per_second}});
    }
  }
  return print({
      {"version", version()},
      {"build", build_facts()},
      {"now", report.now},
      {"kept_in", report.folder},
      {"problem", report.problem},
      {"machine", std::move(machine)},
      {"kernels", std::move(kernels)},
      {"drives", std::move(drives)},
  });
}

std::string run_json(const ModelInfo& info, const Generation& generation, std::uint64_t seed,
                     const Plan& plan, const Stats& stats) {
  Json json = {
      {"text", generation.text},
      {"tokens", generation.tokens},
      {"reason", stop_reason_name(generation.reason)},
      {"stop_string", generation.stop_string},
      {"n_prompt_tokens", generation.n_prompt_tokens},
      {"seed", seed},
      {"model", info_json(info)},
      {"stats", stats_json(stats)},
      {"plan", plan_json(plan)},
  };
  return print(json);
}

std::string perplexity_json(const ModelInfo& info, const PerplexityResult& result, std::uint32_t n_ctx,
                            const Plan& plan, const Stats& stats) {
  Json json = {
      {"perplexity", result.perplexity}, {"std_error", result.std_error}, {"mean_nll", result.mean_nll},
      {"n_scored", result.n_scored},     {"n_chunks", result.n_chunks},   {"n_ctx", n_ctx},
      {"model", info_json(info)},        {"stats", stats_json(stats)},    {"plan", plan_json(plan)},
  };
  return print(json);
}

std::string inspect_json(const Inspection& inspection, bool with_tensors) {
  Json metadata = Json::array();
  for (const MetadataFact& fact : inspection.metadata) {
    metadata.push_back({{"key", fact.key}, {"type", fact.type}, {"value", fact.value}});
  }
  Json json = {
      {"path", inspection.path},
      {"gguf_version", inspection.gguf_version},
      {"architecture", inspection.architecture},
      {"name", inspection.name},
      {"file_bytes", inspection.file_bytes},
      {"n_parameters", inspection.n_parameters},
      {"n_tensors", inspection.tensors.size()},
      {"shards", inspection.shards},
      {"runnable", inspection.runnable},
      {"why_not", inspection.why_not},
      {"metadata", std::move(metadata)},
      {"bytes_by_role", inspection.bytes_by_role},
      {"plan",
       inspection.runnable && inspection.plan_error.empty() ? plan_json(inspection.plan) : Json(nullptr)},
      {"plan_error", inspection.plan_error},
  };
  if (with_tensors) {
    Json tensors = Json::array();
    for (const TensorFact& tensor : inspection.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"type", tensor.type},
                         {"dims", tensor.dims},
                         {"bytes", tensor.bytes},
                         {"shard", tensor.shard},
                         {"offset", tensor.offset},
                         {"role", role_name(tensor.role)}});
    }
    json["tensors"] = std::move(tensors);
  }
  return print(json);
}

}  // namespace sluice::cli
