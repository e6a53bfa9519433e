#include "cli/outlook.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "sluice/error.hpp"
#include "sluice/profile.hpp"

namespace sluice::cli {
namespace {

constexpr double k_day_seconds = 86400;

ProfileOptions profile_options(const std::filesystem::path& path, const OpenOptions& open) {
  ProfileOptions options;
  options.path = path;
  options.n_threads = open.n_threads;
  options.io = open.io;
  return options;
}

Profile kept_profile(const ProfileOptions& options, const ProfileWarning& warn) {
  const std::filesystem::path folder = profile_folder();
  if (folder.empty()) return {};
  return load_profile(options, folder, static_cast<std::int64_t>(k_max_profile_age_days * k_day_seconds),
                      warn);
}

}  // namespace

SpeedRates kept_rates(const std::filesystem::path& path, const OpenOptions& open) {
  try {
    return speed_rates(kept_profile(profile_options(path, open), {}));
  } catch (const Error&) {
    return {};  // What is wrong with the model is said by those who open it.
  }
}

KnownRates known_rates(const std::filesystem::path& path, const OpenOptions& open, double sim_disk) {
  KnownRates known;
  ProfileOptions options = profile_options(path, open);
  const auto note = [&known](const std::string& text) { known.notes.push_back(text); };
  Profile profile = kept_profile(options, note);
  if (!profile.machine) {
    options.path.clear();
    options.quick = true;
    profile.machine = measure_profile(options).machine;
    note(
        "memory and kernels were measured just now, in a second; 'sluice profile' takes its time and keeps "
        "the "
        "result");
  }
  known.rates = speed_rates(profile);
  if (sim_disk > 0) set_drive_rate(known.rates, sim_disk);
  return known;
}

bool PlanOutlook::all_refused() const {
  return std::none_of(report.choices.begin(), report.choices.end(),
                      [](const PlanChoice& choice) { return choice.plan.has_value(); });
}

PlanOutlook make_outlook(PlanReport report, KnownRates known, const OpenOptions& open) {
  PlanOutlook outlook;
  outlook.report = std::move(report);
  outlook.known = std::move(known);
  bool lacks_drive = false;
  for (const PlanChoice& choice : outlook.report.choices) {
    std::optional<PredictionRange>& prediction = outlook.predictions.emplace_back();
    if (!choice.plan) continue;
    const bool needs_drive = !choice.plan->fully_resident();
    if (needs_drive && !outlook.known.rates.knows_drive()) {
      lacks_drive = true;
      continue;
    }
    Workload workload = cut_to_context({}, choice.plan->n_ctx);
    workload.look_ahead = open.look_ahead;
    workload.heat = choice.heat;
    prediction = predict_range(outlook.report.work, *choice.plan, outlook.known.rates, workload);
  }
  if (lacks_drive) {
    const PlanReport& made = outlook.report;
    std::string cure = fmt::format(
        "the drive was not measured yet; run 'sluice profile {}', or give --sim-disk GB/s", made.source);
    if (made.is_shape) {
      cure = "a shape lies on no drive; give one with --sim-disk GB/s";
    } else if (made.file_bytes - made.missing_bytes < k_min_profile_file_bytes) {
      cure = fmt::format(
          "the drive was not measured yet, and the file is too small to do it with; run 'sluice profile' "
          "with a file of {} or more beside it, or give --sim-disk GB/s",
          base::format_bytes(k_min_profile_file_bytes));
    }
    outlook.known.notes.push_back("no speed is predicted for what streams: " + cure);
  }
  return outlook;
}

bool DoctorReport::has_problem() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::problem; });
}

}  // namespace sluice::cli
