#include "cli/json.hpp"

#include "cli/json_parts.hpp"
#include "sluice/version.hpp"

namespace sluice::cli {

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

}  // namespace sluice::cli
