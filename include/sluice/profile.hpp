#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/machine.hpp"
#include "sluice/options.hpp"
#include "sluice/stats.hpp"

namespace sluice {

/// The drive that holds a file, as the system describes it. What it does not say is empty.
struct DriveInfo {
  std::string name;         ///< "nvme0n1", or what is mounted where no block device is behind ("overlay").
  std::string model;        ///< "Samsung SSD 990 PRO 2TB".
  std::string serial;       ///< Of the device.
  std::string file_system;  ///< "ext4".
  std::optional<bool> is_rotational;
  std::uint64_t size_bytes = 0;
  std::vector<std::string> members;  ///< Drives that an array or a mapped device is made of.
  bool operator==(const DriveInfo&) const = default;
};

/// How fast reads of one size were answered when so many were in flight.
struct ReadRate {
  std::uint32_t block_bytes = 0;
  std::uint32_t depth = 0;
  double bytes_per_second = 0;
};

/// What a drive delivers.
struct DriveProfile {
  DriveInfo drive;
  std::string file;                     ///< That was read.
  std::uint64_t file_bytes = 0;         ///< Its size.
  IoBackend io = IoBackend::automatic;  ///< What was asked for.
  std::string backend;                  ///< "io_uring" or "pread"; empty when nothing was measured.
  std::vector<ReadRate> random;         ///< Reads at random places, by block and then depth.
  std::optional<ReadRate> sequential;
  std::uint64_t read_bytes = 0;  ///< In all. More than the file has: some of it was read more than once.
  /// Why the rates are not those of the drive, or why there are none; such results are not kept. Empty when
  /// all is well.
  std::string caveat;
  std::int64_t measured_at = 0;  ///< Seconds since 1970.

  bool has_rates() const noexcept { return !random.empty(); }
};

/// How fast one weight type is multiplied.
struct KernelRate {
  std::string type;                ///< "Q4_K".
  std::uint32_t n_rows = 0;        ///< Rows of activations per pass over the weights.
  double products_per_second = 0;  ///< Multiply-accumulates of all threads together, weights in the caches.
};

struct MachineProfile {
  MachineInfo machine;
  MachineRates memory;
  std::vector<KernelRate> kernels;
  std::int64_t measured_at = 0;
};

/// What is known about this machine and the drives of one model.
struct Profile {
  std::optional<MachineProfile> machine;
  std::vector<DriveProfile> drives;
};

/// The rate of the most expensive reads that are needed: of all that reach `share` of the best rate, the one
/// with the fewest bytes in flight (block x depth), and of several such the fastest. Nothing without rates.
std::optional<ReadRate> knee(std::span<const ReadRate> rates, double share = 0.95);
/// The fastest; nothing without rates.
std::optional<ReadRate> best(std::span<const ReadRate> rates);

/// Random reads of smaller files say more about caches than about drives.
inline constexpr std::uint64_t k_min_profile_file_bytes = std::uint64_t{256} << 20;

struct ProfileOptions {
  /// A model (any shard of it: every drive that holds one is measured), any other file, or a folder whose
  /// largest file is taken. Empty: no drive.
  std::filesystem::path path;
  double seconds = 4;  ///< For each drive, about; 0.1 to 600.
  int n_threads = 0;   ///< For memory and kernels; 0: the cores this process may use.
  bool quick = false;  ///< Kernels in a quarter of the time, for a prediction and not to be kept.
  IoBackend io = IoBackend::automatic;
  /// May be raised from a signal handler or another thread: ends the work with Error(cancelled).
  const std::atomic<bool>* cancel = nullptr;
};

/// Told what is measured next.
using ProfileProgress = std::function<void(const std::string& what)>;

/// Measures what `known` lacks: drives by direct reads of the files (which are only read; their pages do not
/// enter the page cache), memory by reading a large buffer, kernels by multiplying. Parts that `known` has
/// are taken over. Nothing else should run meanwhile. Throws Error: invalid_argument (options out of range),
/// io (a file cannot be read, a folder holds no file), unsupported (--io uring where there is none),
/// cancelled.
Profile measure_profile(const ProfileOptions& options, const Profile& known = {},
                        const ProfileProgress& progress = {});

/// Where profiles are kept: $XDG_CACHE_HOME/sluice/profile, else below ~/.cache; empty when neither variable
/// is set to an absolute path.
std::filesystem::path profile_folder();

/// Told, in a sentence, why a file in the folder was not used.
using ProfileWarning = std::function<void(const std::string& text)>;

/// What is kept of this machine and of the drives that measure_profile() would read for these options, unless
/// older than `max_age_seconds`. Files that are damaged, of another version or of another machine are
/// reported and ignored; those that are missing are not mentioned. Throws as measure_profile() for what the
/// options name.
Profile load_profile(const ProfileOptions& options, const std::filesystem::path& folder,
                     std::int64_t max_age_seconds, const ProfileWarning& warn = {});

/// Fills in what is kept of the drives in the statistics, however old, when they were measured with the same
/// `io`. Reads only small files; drives without a usable one stay as they are.
void add_profiled_rates(Stats& stats, IoBackend io, const std::filesystem::path& folder);

/// Keeps every part without caveat, each in a file of its own that replaces an earlier one at once. Creates
/// the folder. Throws Error(io) when it cannot be written.
void save_profile(const Profile& profile, const std::filesystem::path& folder);

}  // namespace sluice
