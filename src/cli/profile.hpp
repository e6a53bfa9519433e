#pragma once

#include <cstdint>
#include <string>

#include "sluice/model.hpp"
#include "sluice/profile.hpp"

namespace sluice::cli {

/// What `sluice profile` prints.
struct ProfileReport {
  Profile profile;
  std::int64_t now = 0;  ///< Seconds since 1970.
  std::string folder;    ///< Where results are kept; empty when they are not.
  std::string problem;   ///< Why no drive was measured; empty when that was not asked for or done.
};

/// "just now", "12 minutes ago", "3 days ago".
std::string age_text(std::int64_t measured_at, std::int64_t now);
/// The statistics of a model, with what is kept of its drives (add_profiled_rates()).
Stats profiled_stats(const Model& model, IoBackend io);
/// The report for people.
std::string profile_table(const ProfileReport& report);

}  // namespace sluice::cli
