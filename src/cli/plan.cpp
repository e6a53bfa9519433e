#include <fmt/core.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/heat.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "cli/outlook.hpp"
#include "sluice/synth.hpp"

namespace sluice::cli {
namespace {

bool is_shape(const std::string& name) {
  const std::vector<SynthShape> shapes = synth_shapes();
  std::error_code error;
  return std::any_of(shapes.begin(), shapes.end(),
                     [&name](const SynthShape& shape) { return shape.name == name; }) &&
         !std::filesystem::exists(name, error);
}

}  // namespace

int plan(const PlanCommand& command, Output& output) {
  PlanRequest request;
  if (is_shape(command.model)) {
    request.shape = command.model;
    request.type = command.type;
  } else {
    request.path = find_model(command.model);
  }
  request.options = command.open;
  request.options.heat = heat_place("auto");
  request.budgets = command.budgets;
  request.sim_ram_bytes = command.sim_ram_bytes;
  PlanReport report = make_plans(request);
  const PlanChoice& first = report.choices.front();
  if (!command.json && report.choices.size() == 1 && !first.plan)
    base::fail(ErrorCode::budget, "{}", first.refusal);

  const double sim_disk = command.sim_disk_giga * 1e9;
  KnownRates known = known_rates(request.path, command.open, sim_disk);
  if (command.sim_vram_bytes != 0) {
    known.notes.push_back(
        fmt::format("the {} of the GPU count for nothing: this version computes on the CPU only",
                    base::format_bytes(command.sim_vram_bytes)));
  }
  if (command.sim_ram_bytes != 0)
    known.notes.push_back("a simulated machine has this machine's cores and rate of memory");
  PlanOutlook outlook = make_outlook(std::move(report), std::move(known), command.open);
  outlook.sim_ram_bytes = command.sim_ram_bytes;
  outlook.sim_vram_bytes = command.sim_vram_bytes;
  outlook.sim_disk = sim_disk;
  if (command.json) {
    output.write(plan_report_json(outlook));
  } else {
    output.print(plan_text(outlook));
  }
  const int status = exit_status(output);
  return status == k_exit_ok && outlook.all_refused() ? k_exit_error : status;
}

}  // namespace sluice::cli
