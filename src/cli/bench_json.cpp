#include "cli/json.hpp"

#include "cli/json_parts.hpp"
#include "sluice/version.hpp"

namespace sluice::cli {
namespace {

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

}  // namespace

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

}  // namespace sluice::cli
