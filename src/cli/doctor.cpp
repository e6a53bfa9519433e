#include "sluice/doctor.hpp"

#include <fmt/core.h>

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/heat.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "cli/outlook.hpp"

namespace sluice::cli {
namespace {

std::string findings_text(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.topic.size());
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format(
        "{:<8} {:<{}}  {}{}\n", severity_name(finding.severity), finding.topic, width,
        base::printable(finding.text),
        finding.cure.empty() ? std::string() : fmt::format("; cure: {}", base::printable(finding.cure)));
  }
  return text;
}

/// Nothing for a model whose header is bad or that this version cannot run, which is a finding already.
std::optional<PlanOutlook> outlook_of(const std::filesystem::path& path, const OpenOptions& open) {
  try {
    PlanRequest request;
    request.path = path;
    request.options = open;
    request.options.heat = heat_place("auto");
    PlanReport report = make_plans(request);
    if (!report.choices.front().plan) return std::nullopt;
    return make_outlook(std::move(report), known_rates(path, open, 0), open);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

int doctor(const DoctorCommand& command, Output& output) {
  DoctorOptions options;
  options.open = command.open;
  options.profile_folder = profile_folder();
  options.max_profile_age_days = k_max_profile_age_days;
  if (!command.model.empty()) options.path = find_model(command.model);
  DoctorReport report;
  report.findings = examine(options);
  if (!options.path.empty()) report.outlook = outlook_of(options.path, command.open);
  if (command.json) {
    output.write(doctor_json(report));
  } else {
    output.print(findings_text(report.findings));
    if (report.outlook) output.print(fmt::format("\n{}", choice_text(*report.outlook, 0)));
  }
  const int status = exit_status(output);
  return status == k_exit_ok && report.has_problem() ? k_exit_error : status;
}

}  // namespace sluice::cli
