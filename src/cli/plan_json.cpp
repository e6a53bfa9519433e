#include "cli/json.hpp"

#include <cmath>

#include "cli/json_parts.hpp"
#include "sluice/version.hpp"

namespace sluice::cli {
namespace {

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

}  // namespace sluice::cli
