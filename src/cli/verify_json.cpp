#include "cli/json.hpp"
#include "cli/json_parts.hpp"

namespace sluice::cli {
namespace {

Json place_json(const VerifyPlace& place) {
  return {
      {"chunk", place.chunk},
      {"position", place.position},
      {"kl", place.kl},
      {"reference_token", place.reference_token},
      {"token", place.token},
      {"reference_probability", place.reference_probability},
      {"probability", place.probability},
  };
}

}  // namespace

std::string verify_json(const ModelInfo& info, const VerifyReport& report, const Plan& plan,
                        const Stats& stats) {
  const VerifyResult& result = report.result;
  return print({
      {"within_limits", report.is_within()},
      {"mean_kl", result.mean_kl},
      {"mean_kl_error", result.mean_kl_error},
      {"median_kl", result.median_kl},
      {"max_kl", result.max_kl},
      {"same_top_percent", 100 * result.same_top()},
      {"perplexity", result.perplexity},
      {"reference_perplexity", result.reference_perplexity},
      {"n_rated", result.n_rated},
      {"n_scored", result.n_scored},
      {"n_chunks", result.n_chunks},
      {"first_parting", result.first_parting ? place_json(*result.first_parting) : Json(nullptr)},
      {"worst", place_json(result.worst)},
      {"limits", {{"max_kl", report.max_kl}, {"min_same_top_percent", report.min_same_top_percent}}},
      {"model", info_json(info)},
      {"stats", stats_json(stats)},
      {"plan", plan_json(plan)},
  });
}

}  // namespace sluice::cli
