#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sluice/options.hpp"
#include "sluice/profile.hpp"

namespace sluice {

enum class Severity {
  ok,
  note,     ///< Worth knowing.
  warning,  ///< Makes streaming slow.
  problem,  ///< The model cannot run here, or not safely.
};
const char* severity_name(Severity severity) noexcept;

/// One thing that was looked at.
struct Finding {
  Severity severity = Severity::ok;
  std::string topic;  ///< "io_uring", "swap", ...
  std::string text;   ///< What was found, in a sentence without its full stop.
  std::string cure;   ///< What to do about it; empty when there is nothing to do.
};

struct DoctorOptions {
  std::filesystem::path path;  ///< A model, by any shard; empty: only the machine.
  OpenOptions open;            ///< How it would be opened.
  /// Where profiles are kept; empty: nowhere.
  std::filesystem::path profile_folder;
  double max_profile_age_days = 30;
  /// Counters that are to be seen moving are read twice, with so much between.
  int sample_ms = 300;
};

/// Looks at what makes streaming from a drive slow or unsafe on this machine, and at the model's files. A
/// damaged model, or one that does not fit, is a finding. Changes nothing; of a model headers are read and 16
/// blocks of every matrix, to see that weights are there.
/// Throws Error(invalid_argument) for options out of range, such as a context beyond the model's.
std::vector<Finding> examine(const DoctorOptions& options);

}  // namespace sluice
