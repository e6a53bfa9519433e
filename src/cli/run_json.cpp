#include "cli/json.hpp"

#include "cli/json_parts.hpp"

namespace sluice::cli {

std::string run_json(const ModelInfo& info, const Generation& generation, const std::string& error,
                     std::uint64_t seed, const Plan& plan, const Stats& stats) {
  Json json = {
      {"text", generation.text},
      {"tokens", generation.tokens},
      {"reason", error.empty() ? stop_reason_name(generation.reason) : "error"},
      {"error", error.empty() ? Json(nullptr) : Json(error)},
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

}  // namespace sluice::cli
