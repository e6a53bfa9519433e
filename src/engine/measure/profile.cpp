#include "sluice/profile.hpp"

#include <algorithm>
#include <ctime>

#include "base/error.hpp"
#include "base/thread_pool.hpp"
#include "engine/measure/profile_drives.hpp"
#include "engine/measure/profile_kernels.hpp"
#include "engine/model/prepare.hpp"
#include "platform/cpu_features.hpp"

namespace sluice {
namespace {

constexpr double k_min_seconds = 0.1, k_max_seconds = 600;
constexpr double k_kernel_seconds = 1.0, k_quick_kernel_seconds = 0.25;

void check_cancel(const ProfileOptions& options) {
  if (options.cancel != nullptr && options.cancel->load())
    base::fail(ErrorCode::cancelled, "measuring was stopped");
}

MachineProfile measure_machine_profile(const ProfileOptions& options, const ProfileProgress& progress) {
  MachineProfile result;
  result.machine = machine_info();
  if (progress) progress("memory");
  result.memory = measure_machine(options.n_threads);
  check_cancel(options);
  if (progress) progress("kernels");
  base::ThreadPool pool(result.memory.n_threads);
  result.kernels =
      engine::measure_kernels(pool, platform::choose_isa(),
                              options.quick ? k_quick_kernel_seconds : k_kernel_seconds, options.cancel);
  check_cancel(options);
  // As in a bench, before and after: other users of a machine come and go within seconds.
  const MachineRates again = measure_machine(options.n_threads);
  if (again.read_bytes_per_second > result.memory.read_bytes_per_second) result.memory = again;
  result.measured_at = std::time(nullptr);
  return result;
}

const DriveProfile* find_measured(const Profile& known, const DriveProfile& wanted) {
  for (const DriveProfile& drive : known.drives) {
    if (drive.has_rates() && drive.drive == wanted.drive && drive.io == wanted.io) return &drive;
  }
  return nullptr;
}

}  // namespace

std::optional<ReadRate> best(std::span<const ReadRate> rates) {
  const auto found = std::max_element(rates.begin(), rates.end(), [](const ReadRate& a, const ReadRate& b) {
    return a.bytes_per_second < b.bytes_per_second;
  });
  if (found == rates.end()) return std::nullopt;
  return *found;
}

std::optional<ReadRate> knee(std::span<const ReadRate> rates, double share) {
  const std::optional<ReadRate> fastest = best(rates);
  if (!fastest) return std::nullopt;
  const auto flight_bytes = [](const ReadRate& rate) { return std::uint64_t{rate.block_bytes} * rate.depth; };
  ReadRate chosen = *fastest;
  for (const ReadRate& rate : rates) {
    if (rate.bytes_per_second < share * fastest->bytes_per_second) continue;
    const std::uint64_t flight = flight_bytes(rate), least = flight_bytes(chosen);
    if (flight < least || (flight == least && rate.bytes_per_second > chosen.bytes_per_second)) chosen = rate;
  }
  return chosen;
}

Profile measure_profile(const ProfileOptions& options, const Profile& known,
                        const ProfileProgress& progress) {
  if (!(options.seconds >= k_min_seconds && options.seconds <= k_max_seconds)) {
    base::fail(ErrorCode::invalid_argument, "{} seconds are out of range, expected {} to {}", options.seconds,
               k_min_seconds, k_max_seconds);
  }
  Profile profile;
  // What is wrong with the path shows before anything is measured.
  profile.drives = engine::find_drives(options);
  for (DriveProfile& drive : profile.drives) {
    if (const DriveProfile* measured = find_measured(known, drive)) {
      drive = *measured;
      continue;
    }
    check_cancel(options);
    if (progress) progress("drive " + drive.drive.name);
    engine::measure_drive(drive, options.seconds, options.cancel);
  }
  profile.machine = known.machine ? known.machine : measure_machine_profile(options, progress);
  return profile;
}

}  // namespace sluice
