#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/output.hpp"
#include "sluice/doctor.hpp"
#include "sluice/options.hpp"
#include "sluice/planning.hpp"
#include "sluice/predict.hpp"

namespace sluice::cli {

/// Kept profiles older than this are not predicted from, as `sluice profile` measures them again by default.
inline constexpr double k_max_profile_age_days = 30;

/// What is known of a machine and a drive, and how.
struct KnownRates {
  SpeedRates rates;
  std::vector<std::string> notes;  ///< What was measured on the spot, what is missing and how to get it.
};

/// From kept profiles only; what is missing or unreadable is left out silently.
SpeedRates kept_rates(const std::filesystem::path& path, const OpenOptions& open);

/// From kept profiles; memory and kernels are measured in a second when there is none. `path` may be empty
/// (no drive then), and `sim_disk` takes the place of the drive's rate unless 0.
KnownRates known_rates(const std::filesystem::path& path, const OpenOptions& open, double sim_disk);

/// What `sluice plan` prints.
struct PlanOutlook {
  PlanReport report;
  KnownRates known;
  std::uint64_t sim_ram_bytes = 0, sim_vram_bytes = 0;
  double sim_disk = 0;
  /// For each choice; empty for those that are refused, and where rates are missing.
  std::vector<std::optional<PredictionRange>> predictions;

  bool all_refused() const;
};

/// Adds predictions and notes to a report.
PlanOutlook make_outlook(PlanReport report, KnownRates known, const OpenOptions& open);

/// The plan of one choice and its prediction, for people.
std::string choice_text(const PlanOutlook& outlook, std::size_t index);
/// The report for people: that, or a table of several choices.
std::string plan_text(const PlanOutlook& outlook);

/// What `sluice doctor` prints.
struct DoctorReport {
  std::vector<Finding> findings;
  std::optional<PlanOutlook> outlook;  ///< Of a model that has a plan.

  bool has_problem() const;
};

}  // namespace sluice::cli
