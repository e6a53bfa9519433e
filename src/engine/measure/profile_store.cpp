#include <fmt/core.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/cache_folder.hpp"
#include "base/error.hpp"
#include "base/fnv.hpp"
#include "engine/measure/profile_drives.hpp"
#include "engine/plan/machine_facts.hpp"
#include "platform/text_files.hpp"
#include "sluice/profile.hpp"
#include "synth/new_file.hpp"

// Profiles as files. What they hold is checked like any other input: a file that is not what this version
// writes is reported and measured anew.
namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int k_format = 1;
constexpr std::size_t k_max_rates = 1024;
/// A clock that was wrong for a while; anything later was not written by this machine's past.
constexpr std::int64_t k_max_future_seconds = 86400;

const char* io_name(IoBackend io) noexcept {
  switch (io) {
    case IoBackend::uring:
      return "uring";
    case IoBackend::pread:
      return "pread";
    case IoBackend::automatic:
      break;
  }
  return "auto";
}

Json machine_key(const MachineInfo& machine, int n_threads) {
  return {{"cpu", machine.cpu_model},
          {"n_cpus", machine.n_usable_cpus},
          {"isa", machine.isa},
          {"n_threads", n_threads}};
}

Json drive_key(const MachineInfo& machine, const DriveProfile& profile) {
  const DriveInfo& drive = profile.drive;
  Json rotational = nullptr;
  if (drive.is_rotational) rotational = *drive.is_rotational;
  return {{"cpu", machine.cpu_model},
          {"n_cpus", machine.n_usable_cpus},
          {"io", io_name(profile.io)},
          {"name", drive.name},
          {"model", drive.model},
          {"serial", drive.serial},
          {"file_system", drive.file_system},
          {"rotational", rotational},
          {"size_bytes", drive.size_bytes},
          {"members", drive.members}};
}

/// Names from drivers need not be UTF-8.
std::string print(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// Names of files may be the same by chance: the key itself is in the file and compared.
fs::path file_of(const fs::path& folder, const char* kind, const Json& key) {
  return folder / fmt::format("{}-{:016x}.json", kind, base::fnv1a(print(key, -1)));
}

Json rate_json(const ReadRate& rate) {
  return {
      {"block_bytes", rate.block_bytes}, {"depth", rate.depth}, {"bytes_per_second", rate.bytes_per_second}};
}

// --- reading
// -------------------------------------------------------------------------------------------------

/// What is wrong with a file; never leaves this file.
struct Unusable {
  std::string why;
};

const Json& member(const Json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  if (!json.is_object() || found == json.end()) throw Unusable{fmt::format("it lacks \"{}\"", name)};
  return *found;
}

std::string text(const Json& json, const char* name) {
  const Json& value = member(json, name);
  if (!value.is_string()) throw Unusable{fmt::format("\"{}\" is no text", name)};
  return value.get<std::string>();
}

template <typename T>
T integer(const Json& json, const char* name, std::uint64_t max) {
  const Json& value = member(json, name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max)
    throw Unusable{fmt::format("\"{}\" is no number up to {}", name, max)};
  return static_cast<T>(value.get<std::uint64_t>());
}

double rate(const Json& json, const char* name) {
  const Json& value = member(json, name);
  const double number = value.is_number() ? value.get<double>() : -1.0;
  if (!(std::isfinite(number) && number > 0)) throw Unusable{fmt::format("\"{}\" is no rate", name)};
  return number;
}

bool truth(const Json& json, const char* name) {
  const Json& value = member(json, name);
  if (!value.is_boolean()) throw Unusable{fmt::format("\"{}\" is neither true nor false", name)};
  return value.get<bool>();
}

const Json& list(const Json& json, const char* name) {
  const Json& value = member(json, name);
  if (!value.is_array() || value.size() > k_max_rates) throw Unusable{fmt::format("\"{}\" is no list", name)};
  return value;
}

ReadRate read_rate(const Json& json) {
  return {integer<std::uint32_t>(json, "block_bytes", UINT32_MAX),
          integer<std::uint32_t>(json, "depth", 65536), rate(json, "bytes_per_second")};
}

/// The content of a kept file, if there is one that is no older; throws Unusable for one that is not what it
/// should be.
std::optional<Json> read_file(const fs::path& path, const char* kind, const Json& key,
                              std::int64_t max_age_seconds) {
  const auto content = platform::read_text_file(path.string());
  if (!content) return std::nullopt;
  const Json json = Json::parse(*content, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) throw Unusable{"it is no JSON object"};
  if (integer<int>(json, "format", INT32_MAX) != k_format) throw Unusable{"it is of another version"};
  if (text(json, "kind") != kind || print(member(json, "key"), -1) != print(key, -1))
    throw Unusable{"it is of another machine or drive"};
  const auto measured_at = integer<std::int64_t>(json, "measured_at", INT64_MAX);
  const std::int64_t now = std::time(nullptr);
  if (measured_at > now + k_max_future_seconds) throw Unusable{"it is from the future"};
  if (now - measured_at > max_age_seconds) return std::nullopt;
  return json;
}

MachineProfile machine_of(const Json& json, const MachineInfo& machine) {
  MachineProfile profile;
  profile.machine = machine;
  profile.measured_at = integer<std::int64_t>(json, "measured_at", INT64_MAX);
  const Json& memory = member(json, "memory");
  profile.memory.n_threads = integer<int>(memory, "n_threads", 65536);
  profile.memory.buffer_bytes = integer<std::uint64_t>(memory, "buffer_bytes", UINT64_MAX);
  profile.memory.cache_bytes = integer<std::uint64_t>(memory, "cache_bytes", UINT64_MAX);
  profile.memory.n_passes = integer<std::uint32_t>(memory, "n_passes", UINT32_MAX);
  profile.memory.beyond_cache = truth(memory, "beyond_cache");
  profile.memory.read_bytes_per_second = rate(memory, "bytes_per_second");
  for (const Json& kernel : list(json, "kernels")) {
    profile.kernels.push_back({text(kernel, "type"), integer<std::uint32_t>(kernel, "n_rows", 65536),
                               rate(kernel, "products_per_second")});
  }
  return profile;
}

void read_drive(const Json& json, DriveProfile& drive) {
  DriveProfile read = drive;
  read.measured_at = integer<std::int64_t>(json, "measured_at", INT64_MAX);
  read.file = text(json, "file");
  read.file_bytes = integer<std::uint64_t>(json, "file_bytes", UINT64_MAX);
  read.read_bytes = integer<std::uint64_t>(json, "read_bytes", UINT64_MAX);
  read.backend = text(json, "backend");
  for (const Json& entry : list(json, "random")) read.random.push_back(read_rate(entry));
  if (read.random.empty()) throw Unusable{"it has no rates"};
  if (const Json& sequential = member(json, "sequential"); !sequential.is_null())
    read.sequential = read_rate(sequential);
  read.caveat.clear();
  drive = std::move(read);
}

void write_file(const fs::path& path, const Json& json) {
  const std::string content = print(json, 2) + "\n";
  synth::NewFile file(path, content.size(), /*may_replace=*/true);
  file.append(std::as_bytes(std::span(content)));
  file.commit();
}

template <typename Read>
void read_or_warn(const fs::path& path, const ProfileWarning& warn, Read&& read) {
  try {
    read();
  } catch (const Unusable& problem) {
    if (warn) warn(fmt::format("{} is not used: {}", path.string(), problem.why));
  }
}

/// Whether something usable is kept of profile.drive; then `profile` has it.
bool load_drive(const MachineInfo& machine, const fs::path& folder, std::int64_t max_age_seconds,
                const ProfileWarning& warn, DriveProfile& profile) {
  const Json key = drive_key(machine, profile);
  const fs::path path = file_of(folder, "drive", key);
  bool is_kept = false;
  read_or_warn(path, warn, [&] {
    const auto json = read_file(path, "drive", key, max_age_seconds);
    if (json) read_drive(*json, profile);
    is_kept = json.has_value();
  });
  return is_kept;
}

}  // namespace

fs::path profile_folder() {
  const fs::path cache = base::cache_folder();
  return cache.empty() ? cache : cache / "sluice" / "profile";
}

Profile load_profile(const ProfileOptions& options, const fs::path& folder, std::int64_t max_age_seconds,
                     const ProfileWarning& warn) {
  Profile profile;
  OpenOptions threads;
  threads.n_threads = options.n_threads;
  const MachineInfo machine = machine_info();
  const Json key = machine_key(machine, engine::thread_count(threads));
  const fs::path machine_file = file_of(folder, "machine", key);
  read_or_warn(machine_file, warn, [&] {
    if (const auto json = read_file(machine_file, "machine", key, max_age_seconds))
      profile.machine = machine_of(*json, machine);
  });
  for (DriveProfile& drive : engine::find_drives(options)) {
    if (load_drive(machine, folder, max_age_seconds, warn, drive)) profile.drives.push_back(std::move(drive));
  }
  return profile;
}

void add_profiled_rates(Stats& stats, IoBackend io, const fs::path& folder) {
  if (folder.empty()) return;
  const MachineInfo machine = machine_info();
  for (DriveStats& drive : stats.drives) {
    DriveProfile kept;
    kept.io = io;
    try {
      kept.drive = engine::drive_of(drive.file);
    } catch (const Error&) {
      continue;  // The file was removed or renamed while the model was open.
    }
    if (!load_drive(machine, folder, INT64_MAX, {}, kept)) continue;
    drive.profiled_bytes_per_second = best(kept.random)->bytes_per_second;
    drive.profiled_at = kept.measured_at;
  }
}

void save_profile(const Profile& profile, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) base::fail(ErrorCode::io, "cannot make {}: {}", folder.string(), error.message());
  const MachineInfo machine = profile.machine ? profile.machine->machine : machine_info();
  if (profile.machine) {
    const MachineRates& memory = profile.machine->memory;
    const Json key = machine_key(machine, memory.n_threads);
    Json kernels = Json::array();
    for (const KernelRate& kernel : profile.machine->kernels) {
      kernels.push_back({{"type", kernel.type},
                         {"n_rows", kernel.n_rows},
                         {"products_per_second", kernel.products_per_second}});
    }
    write_file(file_of(folder, "machine", key), {{"format", k_format},
                                                 {"kind", "machine"},
                                                 {"key", key},
                                                 {"measured_at", profile.machine->measured_at},
                                                 {"memory",
                                                  {{"n_threads", memory.n_threads},
                                                   {"buffer_bytes", memory.buffer_bytes},
                                                   {"cache_bytes", memory.cache_bytes},
                                                   {"n_passes", memory.n_passes},
                                                   {"beyond_cache", memory.beyond_cache},
                                                   {"bytes_per_second", memory.read_bytes_per_second}}},
                                                 {"kernels", std::move(kernels)}});
  }
  for (const DriveProfile& drive : profile.drives) {
    if (!drive.has_rates() || !drive.caveat.empty()) continue;
    const Json key = drive_key(machine, drive);
    Json random = Json::array();
    for (const ReadRate& entry : drive.random) random.push_back(rate_json(entry));
    write_file(file_of(folder, "drive", key),
               {{"format", k_format},
                {"kind", "drive"},
                {"key", key},
                {"measured_at", drive.measured_at},
                {"file", drive.file},
                {"file_bytes", drive.file_bytes},
                {"read_bytes", drive.read_bytes},
                {"backend", drive.backend},
                {"random", std::move(random)},
                {"sequential", drive.sequential ? rate_json(*drive.sequential) : Json(nullptr)}});
  }
}

}  // namespace sluice
