#include "engine/measure/profile_drives.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/model/prepare.hpp"
#include "engine/plan/machine_facts.hpp"
#include "platform/drive.hpp"
#include "storage/drive_probe.hpp"
#include "storage/file.hpp"

namespace sluice::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::uint32_t, 5> k_blocks = {64u << 10, 256u << 10, 512u << 10, 1u << 20, 4u << 20};
constexpr std::array<std::uint32_t, 5> k_depths = {1, 4, 8, 16, 32};
/// Beyond caches, as the weights of a model that streams.
constexpr std::uint64_t k_buffer_bytes = 512 * base::k_mib;
/// Less than this on the drive: the rest is holes or compressed, which no drive delivers.
constexpr double k_min_allocated_share = 0.9;
constexpr std::size_t k_max_folder_entries = 100000;

fs::path largest_file(const fs::path& folder) {
  fs::path largest;
  std::uint64_t bytes = 0;
  std::error_code error;
  std::size_t n_entries = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (++n_entries > k_max_folder_entries) break;
    std::error_code no_file;
    if (!it->is_regular_file(no_file) || no_file) continue;
    const std::uint64_t size = it->file_size(no_file);
    if (no_file || size <= bytes) continue;
    largest = it->path();
    bytes = size;
  }
  if (error) base::fail(ErrorCode::io, "cannot list {}: {}", folder.string(), error.message());
  if (largest.empty()) {
    base::fail(ErrorCode::io, "{} holds no file to read; give a model or a folder with a large file",
               folder.string());
  }
  return largest;
}

/// All shards of a model, or the file itself when it is no model.
std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return {largest_file(path)};
  std::vector<fs::path> files;
  try {
    for (const auto& shard : parse_header(path).shards) files.emplace_back(shard->path());
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::io) throw;
    files.push_back(path);
  }
  return files;
}

std::string caveat_of(const fs::path& file, std::uint64_t bytes) {
  if (bytes < k_min_profile_file_bytes) {
    return fmt::format("the file has {}, and random reads of less than {} tell more about caches",
                       base::format_bytes(bytes), base::format_bytes(k_min_profile_file_bytes));
  }
  struct stat info {};
  if (stat(file.c_str(), &info) != 0) return {};
  const double allocated = static_cast<double>(info.st_blocks) * 512;  // The unit of st_blocks, by POSIX.
  if (S_ISREG(info.st_mode) && allocated < k_min_allocated_share * static_cast<double>(bytes)) {
    return fmt::format("only {} of the file's {} lie on the drive: it has holes or is compressed",
                       base::format_bytes(static_cast<std::uint64_t>(allocated)), base::format_bytes(bytes));
  }
  return {};
}

}  // namespace

DriveInfo drive_of(const fs::path& file) {
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  if (error) base::fail(ErrorCode::io, "cannot find {}: {}", file.string(), error.message());
  platform::DriveFacts facts = platform::read_drive_facts(real.string());
  return {std::move(facts.name),        std::move(facts.model), std::move(facts.serial),
          std::move(facts.file_system), facts.is_rotational,    facts.size_bytes,
          std::move(facts.members)};
}

std::vector<DriveProfile> find_drives(const ProfileOptions& options) {
  std::vector<DriveProfile> drives;
  if (options.path.empty()) return drives;
  for (const fs::path& file : files_of(options.path)) {
    const std::uint64_t bytes = storage::File::open(file.string(), /*want_direct=*/false)->size_bytes();
    DriveInfo info = drive_of(file);
    auto found = std::find_if(drives.begin(), drives.end(),
                              [&info](const DriveProfile& drive) { return drive.drive == info; });
    if (found == drives.end()) found = drives.insert(drives.end(), DriveProfile{});
    if (bytes <= found->file_bytes) continue;
    found->drive = std::move(info);
    found->file = file.string();
    found->file_bytes = bytes;
    found->io = options.io;
    found->caveat = caveat_of(file, bytes);
  }
  return drives;
}

void measure_drive(DriveProfile& drive, double seconds, const std::atomic<bool>* cancel) {
  if (drive.file_bytes < k_min_profile_file_bytes) return;
  const auto file = storage::File::open(drive.file, /*want_direct=*/true);
  const std::unique_ptr<storage::Backend> backend = storage::make_backend(drive.io).backend;
  storage::ProbeOptions probe;
  probe.block_bytes = k_blocks;
  probe.depths = k_depths;
  probe.seconds = seconds;
  probe.buffer_bytes = std::min(k_buffer_bytes, machine_facts().default_budget_bytes / 4);
  // Other places every time: a drive may remember those it read a minute ago.
  probe.seed = static_cast<std::uint64_t>(std::time(nullptr));
  probe.cancel = cancel;
  const storage::DriveProbe result = storage::probe_drive(*file, *backend, probe);
  drive.backend = backend->name();
  for (const storage::ProbeRate& rate : result.random)
    drive.random.push_back({rate.block_bytes, rate.depth, rate.bytes_per_second});
  const storage::ProbeRate& rate = result.sequential;
  if (rate.bytes_per_second > 0)
    drive.sequential = ReadRate{rate.block_bytes, rate.depth, rate.bytes_per_second};
  drive.read_bytes = result.read_bytes;
  drive.measured_at = std::time(nullptr);
  if (!file->is_direct()) {
    drive.caveat =
        fmt::format("these are rates of the page cache, not of the drive: {}", file->why_not_direct());
  }
}

}  // namespace sluice::engine
