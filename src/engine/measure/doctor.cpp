#include "sluice/doctor.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <thread>

#include "engine/measure/doctor_judge.hpp"
#include "engine/measure/profile_drives.hpp"
#include "engine/model/prepare.hpp"
#include "gguf/raw_pieces.hpp"
#include "sluice/error.hpp"
#include "sluice/planning.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Rings of the size that the engine's are.
constexpr std::size_t k_ring_depth = 64;

void plan(const DoctorOptions& options, engine::ModelHealth& model) {
  try {
    PlanRequest request;
    request.path = options.path;
    request.options = options.open;
    const PlanReport report = make_plans(request);
    model.missing_bytes = report.missing_bytes;
    const PlanChoice& choice = report.choices.front();
    model.refusal = choice.refusal;
    if (choice.plan) {
      model.planned_bytes = choice.plan->planned_bytes;
      model.budget_bytes = choice.plan->budget_bytes;
      model.streamed_bytes = choice.plan->streamed_bytes;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported) {
      model.unsupported = error.what();
    } else if (error.code() == ErrorCode::io || error.code() == ErrorCode::invalid_file) {
      model.damage = error.what();
    } else {
      throw;
    }
  }
}

void find_place(const fs::path& path, engine::ModelHealth& model) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error) model.place = platform::read_place(real.string());
  try {
    const auto file = storage::File::open(path.string(), /*want_direct=*/true);
    model.is_direct = file->is_direct();
    model.why_not_direct = file->why_not_direct();
  } catch (const Error&) {
    model.is_direct = false;  // What is wrong with the file is said where its header is read.
  }
}

/// Looks closer than opening a model does. What it finds says its cure.
void look_at_weights(const DoctorOptions& options, engine::ModelHealth& model) {
  constexpr std::size_t k_n_samples = 16;
  try {
    const auto prepared = engine::prepare(engine::parse_header(options.path), options.open, false);
    engine::check_weights(*prepared, k_n_samples);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_file && error.code() != ErrorCode::io) throw;
    model.damage = error.what();
    model.damage_says_cure = error.code() == ErrorCode::invalid_file;
  }
}

/// A first piece of a file that was cut looks like an incomplete download.
void look_for_pieces(const fs::path& path, engine::ModelHealth& model) {
  const auto open = [](const std::string& name) {
    return storage::make_byte_source(storage::File::open(name, false));
  };
  const auto piece = gguf::describe_raw_piece(path.string(), open);
  if (!piece) return;
  model.damage = fmt::format("{}: {}", path.string(), *piece);
  model.damage_says_cure = true;
}

/// Shards and drives, of a model whose header is good.
void find_drive(const ProfileOptions& options, const Profile& kept, std::int64_t now,
                engine::ModelHealth& model) {
  model.n_shards = engine::parse_header(options.path, /*allow_missing_data=*/true).shards.size();
  const std::vector<DriveProfile> drives = engine::find_drives(options);
  if (drives.empty()) return;
  model.drive = drives.front().drive;
  model.can_be_profiled = std::any_of(drives.begin(), drives.end(), [](const DriveProfile& drive) {
    return drive.file_bytes >= k_min_profile_file_bytes;
  });
  for (const DriveProfile& drive : kept.drives) {
    if (const auto rate = best(drive.random))
      model.drive_rate = std::min(model.drive_rate.value_or(rate->bytes_per_second), rate->bytes_per_second);
    const std::int64_t age = now - drive.measured_at;
    model.drive_profile_age_seconds = std::max(model.drive_profile_age_seconds.value_or(age), age);
  }
}

engine::ModelHealth look_at_model(const DoctorOptions& options, const ProfileOptions& profile_options,
                                  Profile& kept, std::int64_t now) {
  engine::ModelHealth model;
  model.path = options.path.string();
  plan(options, model);
  if (model.missing_bytes != 0 || !model.damage.empty()) {
    look_for_pieces(options.path, model);
  } else if (model.unsupported.empty()) {
    look_at_weights(options, model);
  }
  find_place(options.path, model);
  if (!model.damage.empty()) return model;
  if (!options.profile_folder.empty()) {
    // Older ones are worth mentioning.
    kept = load_profile(profile_options, options.profile_folder, std::numeric_limits<std::int64_t>::max());
  }
  find_drive(profile_options, kept, now, model);
  return model;
}

}  // namespace

std::vector<Finding> examine(const DoctorOptions& options) {
  constexpr double k_day_seconds = 86400;
  engine::DoctorFacts facts;
  facts.health = platform::read_health();
  const auto first_reading = std::chrono::steady_clock::now();
  facts.max_profile_age_seconds = options.max_profile_age_days * k_day_seconds;
  facts.has_uring = storage::make_uring_backend(k_ring_depth, &facts.why_not_uring) != nullptr;

  ProfileOptions profile_options;
  profile_options.n_threads = options.open.n_threads;
  profile_options.io = options.open.io;
  const std::int64_t now = std::time(nullptr);
  Profile kept;
  if (!options.profile_folder.empty())
    kept = load_profile(profile_options, options.profile_folder, std::numeric_limits<std::int64_t>::max());
  if (!options.path.empty()) {
    profile_options.path = options.path;
    facts.model = look_at_model(options, profile_options, kept, now);
  }
  if (kept.machine) facts.machine_profile_age_seconds = now - kept.machine->measured_at;
  std::this_thread::sleep_until(first_reading + std::chrono::milliseconds(options.sample_ms));
  facts.later = platform::read_health_counters();
  return engine::judge(facts);
}

}  // namespace sluice
