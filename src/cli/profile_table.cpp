#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/output.hpp"
#include "cli/profile.hpp"
#include "cli/stats_table.hpp"

namespace sluice::cli {
namespace {

using base::format_bytes;

const std::string k_missing(1, '-');

std::string giga(double per_second) {
  return fmt::format("{:.2f}", per_second / 1e9);
}

std::string kind_text(const DriveInfo& drive) {
  std::string text = drive.file_system.empty() ? "unknown file system" : base::printable(drive.file_system);
  if (drive.size_bytes != 0) text += fmt::format(", {}", format_bytes(drive.size_bytes));
  if (!drive.model.empty()) text += fmt::format(", {}", base::printable(drive.model));
  // Virtual drives often claim to rotate; it is said as the system says it.
  if (drive.is_rotational) text += *drive.is_rotational ? ", says it rotates" : ", does not rotate";
  if (!drive.members.empty()) {
    text += ", made of";
    for (const std::string& member : drive.members) text += fmt::format(" {}", base::printable(member));
  }
  return text;
}

std::string reads_text(const ReadRate& rate) {
  return fmt::format("{} GB/s with {} read{} of {} in flight", giga(rate.bytes_per_second), rate.depth,
                     rate.depth == 1 ? "" : "s", format_bytes(rate.block_bytes));
}

/// GB/s by block (down) and reads in flight (across).
std::string rates_table(const std::vector<ReadRate>& rates) {
  std::vector<std::uint32_t> depths;
  for (const ReadRate& rate : rates) depths.push_back(rate.depth);
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  std::vector<std::vector<std::string>> lines{{"  GB/s, random reads of"}};
  for (const std::uint32_t depth : depths) lines.front().push_back(fmt::format("{} in flight", depth));
  std::uint32_t block_bytes = 0;
  for (const ReadRate& rate : rates) {
    if (rate.block_bytes != block_bytes) {
      block_bytes = rate.block_bytes;
      lines.push_back({fmt::format("  {}", format_bytes(block_bytes))});
      lines.back().resize(depths.size() + 1, k_missing);
    }
    const auto column = std::find(depths.begin(), depths.end(), rate.depth) - depths.begin();
    lines.back()[static_cast<std::size_t>(column) + 1] = giga(rate.bytes_per_second);
  }
  return columns(lines);
}

std::string drive_text(const DriveProfile& drive, std::int64_t now) {
  std::string text =
      fmt::format("drive {}: {}\n  file      {} ({})\n", base::printable(drive.drive.name),
                  kind_text(drive.drive), base::printable(drive.file), format_bytes(drive.file_bytes));
  if (!drive.has_rates()) return text + fmt::format("  not measured: {}\n", base::printable(drive.caveat));
  text += fmt::format("  measured  {} with {}, {} read{}\n", age_text(drive.measured_at, now),
                      base::printable(drive.backend), format_bytes(drive.read_bytes),
                      drive.read_bytes > drive.file_bytes
                          ? ": more than the file has, so the drive's own cache may have helped"
                          : "");
  if (!drive.caveat.empty()) text += fmt::format("  not kept: {}\n", base::printable(drive.caveat));
  if (const auto fastest = best(drive.random)) text += fmt::format("  best      {}\n", reads_text(*fastest));
  if (const auto enough = knee(drive.random))
    text +=
        fmt::format("  knee      {}: the fewest bytes in flight for 95 % of the best\n", reads_text(*enough));
  if (drive.sequential) text += fmt::format("  in order  {}\n", reads_text(*drive.sequential));
  return text + rates_table(drive.random);
}

std::string machine_text(const MachineProfile& profile, std::int64_t now) {
  const MachineInfo& machine = profile.machine;
  const MachineRates& memory = profile.memory;
  std::string text = fmt::format("machine: {}, {} cores usable, {}, {}, {}\n",
                                 base::printable(machine.cpu_model), machine.n_usable_cpus, machine.isa,
                                 format_bytes(machine.memory_bytes), base::printable(machine.kernel));
  text +=
      fmt::format("  measured  {} with {} threads\n", age_text(profile.measured_at, now), memory.n_threads);
  text += fmt::format("  memory    {} GB/s, read in order over {}{}\n", giga(memory.read_bytes_per_second),
                      format_bytes(memory.buffer_bytes),
                      memory.beyond_cache ? "" : "; caches helped, there is no room for a larger buffer");
  std::vector<std::uint32_t> row_counts;
  std::vector<std::vector<std::string>> lines{{"  GMAC/s, weights in cache"}};
  for (const KernelRate& kernel : profile.kernels) {
    if (std::find(row_counts.begin(), row_counts.end(), kernel.n_rows) == row_counts.end()) {
      row_counts.push_back(kernel.n_rows);
      lines.front().push_back(fmt::format("{} row{}", kernel.n_rows, kernel.n_rows == 1 ? "" : "s"));
    }
  }
  for (const KernelRate& kernel : profile.kernels) {
    const std::string label = fmt::format("  {}", base::printable(kernel.type));
    if (lines.back().front() != label) {
      lines.push_back({label});
      lines.back().resize(row_counts.size() + 1, k_missing);
    }
    const auto column = std::find(row_counts.begin(), row_counts.end(), kernel.n_rows) - row_counts.begin();
    lines.back()[static_cast<std::size_t>(column) + 1] =
        fmt::format("{:.0f}", kernel.products_per_second / 1e9);
  }
  return text + columns(lines);
}

}  // namespace

std::string age_text(std::int64_t measured_at, std::int64_t now) {
  constexpr std::int64_t k_minute = 60, k_hour = 60 * k_minute, k_day = 24 * k_hour;
  const std::int64_t age = now - measured_at;
  const auto ago = [age](std::int64_t unit, const char* name) {
    const std::int64_t n = age / unit;
    return fmt::format("{} {}{} ago", n, name, n == 1 ? "" : "s");
  };
  if (age < k_minute) return "just now";
  if (age < k_hour) return ago(k_minute, "minute");
  if (age < 2 * k_day) return ago(k_hour, "hour");
  return ago(k_day, "day");
}

std::string profile_table(const ProfileReport& report) {
  std::string text;
  if (report.profile.machine) text += machine_text(*report.profile.machine, report.now);
  for (const DriveProfile& drive : report.profile.drives)
    text += fmt::format("\n{}", drive_text(drive, report.now));
  if (!report.problem.empty())
    text += fmt::format("\nno drive was measured: {}\n", base::printable(report.problem));
  return text;
}

}  // namespace sluice::cli
