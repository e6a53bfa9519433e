#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sluice/options.hpp"
#include "sluice/plan.hpp"
#include "sluice/predict.hpp"

namespace sluice {

/// What is to be planned, and for which machine.
struct PlanRequest {
  /// A model, given by any shard. It may end behind its header (a download that was broken off, or a file cut
  /// to be planned with).
  std::filesystem::path path;
  /// Instead of `path`: a name of synth_shapes(), whose header is made in memory; and a name of
  /// synth_types().
  std::string shape;
  std::string type = "Q4_K_M";
  OpenOptions options;
  /// Budgets to plan with instead of options.memory_bytes; empty: that one alone.
  std::vector<std::uint64_t> budgets;
  /// Memory of a machine that runs nothing else, instead of this one; 0: this one as it is now.
  std::uint64_t sim_ram_bytes = 0;
};

/// One budget: a plan, or why there is none.
struct PlanChoice {
  std::uint64_t memory_bytes = 0;  ///< Asked for; 0: the default.
  std::optional<Plan> plan;
  /// Where options.heat has use counts of this model, the file is complete and experts stream.
  std::optional<HeatForecast> heat;
  std::string refusal;             ///< Empty with a plan.
  std::uint64_t needed_bytes = 0;  ///< Smallest budget that works, when this one is smaller.
};

struct PlanReport {
  std::string source;  ///< The path, or "shape NAME".
  std::string name;
  std::string architecture;
  std::uint64_t file_bytes = 0;     ///< Of all shards, when they are whole.
  std::uint64_t missing_bytes = 0;  ///< Of those, what the files lack.
  std::uint64_t n_parameters = 0;
  bool is_shape = false;
  WorkFacts work;
  std::vector<PlanChoice> choices;  ///< One for each budget, in their order.
};

/// Makes the plans that opening the model would make, from its header only. Throws Error: io, invalid_file,
/// unsupported (this version cannot run the model), invalid_argument (an unknown shape or type, a context
/// beyond the model's, options out of range). A budget that is too small is a refusal in the report.
PlanReport make_plans(const PlanRequest& request);

}  // namespace sluice
