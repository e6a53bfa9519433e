#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/health.hpp"
#include "sluice/doctor.hpp"

namespace sluice::engine {

/// What is known of the model's files and of their drive.
struct ModelHealth {
  std::string path;
  /// Why the files are refused (a missing shard, a bad tensor, weights that are zero, ...); empty when good.
  std::string damage;
  bool damage_says_cure = false;
  std::uint64_t missing_bytes = 0;  ///< What the files lack of what their header promises.
  std::string unsupported;          ///< Why this version cannot run it.
  std::string refusal;              ///< Why no plan fits the budget.
  std::uint64_t planned_bytes = 0, budget_bytes = 0, streamed_bytes = 0;
  std::size_t n_shards = 1;
  platform::PlaceFacts place;
  bool is_direct = true;
  std::string why_not_direct;
  DriveInfo drive;
  std::optional<double> drive_rate;  ///< Measured, random reads, bytes per second.
  std::optional<std::int64_t> drive_profile_age_seconds;
  bool can_be_profiled = true;  ///< Large enough to measure its drive with.
};

struct DoctorFacts {
  platform::HealthFacts health;
  platform::HealthCounters later;  ///< `health.counters`, read a moment after.
  bool has_uring = true;           ///< A ring could be made.
  std::string why_not_uring;
  std::optional<std::int64_t> machine_profile_age_seconds;
  double max_profile_age_seconds = 0;
  std::optional<ModelHealth> model;
};

/// Judges facts: pure. In a fixed order, at least one finding for each topic that the facts say anything
/// about.
std::vector<Finding> judge(const DoctorFacts& facts);

}  // namespace sluice::engine
