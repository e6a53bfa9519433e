#include "platform/health.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "base/checked.hpp"
#include "platform/cgroup.hpp"
#include "platform/cpu_features.hpp"
#include "platform/mounts.hpp"
#include "platform/text_files.hpp"

namespace sluice::platform {
namespace {

/// More folders than any machine has below one of those that are listed.
constexpr int k_max_entries = 65536;

/// The number a text begins with.
std::optional<double> leading_number(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

void read_kernel(const std::string& root, HealthFacts& facts) {
  const std::string release = read_text_file(root + "/proc/sys/kernel/osrelease").value_or("");
  const char* const end = release.data() + release.size();
  int major = 0, minor = 0;
  const auto first = std::from_chars(release.data(), end, major);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return;
  if (std::from_chars(first.ptr + 1, end, minor).ec != std::errc()) return;
  facts.kernel_major = major;
  facts.kernel_minor = minor;
}

/// Cores of a list such as "0-3,8-11".
int count_list(std::string_view list) {
  int n = 0;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view part = list.substr(0, comma);
    const std::size_t dash = part.find('-');
    const auto first = parse_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
    if (first && last && *last >= *first && *last - *first < static_cast<std::uint64_t>(k_max_entries))
      n += static_cast<int>(*last - *first) + 1;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return n;
}

/// The word in brackets of "always [madvise] never".
std::string chosen_word(std::string_view text) {
  const std::size_t open = text.find('['), close = text.find(']', open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

/// avg10 of the line "some avg10=0.12 avg60=...".
std::optional<double> pressure(const std::string& text) {
  std::optional<double> value;
  for_each_line(text, [&value](std::string_view line) {
    constexpr std::string_view k_key = "some avg10=";
    if (line.starts_with(k_key)) value = leading_number(line.substr(k_key.size()));
  });
  return value;
}

std::optional<std::uint64_t> soft_limit(__rlimit_resource_t resource) {
  struct rlimit value {};
  if (getrlimit(resource, &value) != 0 || value.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return value.rlim_cur;
}

/// Calls use(path) for each entry whose name is `prefix` and a number.
template <typename Use>
void for_each_numbered(const std::string& folder, std::string_view prefix, Use&& use) {
  namespace fs = std::filesystem;
  std::error_code error;
  int n_entries = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (++n_entries > k_max_entries) return;
    const std::string name = it->path().filename().string();
    if (name.starts_with(prefix) && parse_number(std::string_view(name).substr(prefix.size())))
      use(it->path().string());
  }
}

std::optional<double> hottest_zone(const std::string& root) {
  constexpr double k_milli = 1000;
  /// Zones without a sensor report nonsense.
  constexpr double k_max_celsius = 150;
  std::optional<double> hottest;
  for_each_numbered(root + "/sys/class/thermal", "thermal_zone", [&hottest](const std::string& zone) {
    const auto value = read_number(zone + "/temp");
    if (!value) return;
    const double celsius = static_cast<double>(*value) / k_milli;
    if (celsius <= k_max_celsius) hottest = std::max(hottest.value_or(celsius), celsius);
  });
  return hottest;
}

}  // namespace

HealthCounters read_health_counters(const std::string& root) {
  HealthCounters counters;
  const std::string vmstat = read_text_file(root + "/proc/vmstat").value_or("");
  counters.n_swapped_in = find_number(vmstat, "pswpin");
  counters.n_swapped_out = find_number(vmstat, "pswpout");
  for_each_numbered(root + "/sys/devices/system/cpu", "cpu", [&counters](const std::string& cpu) {
    if (const auto n = read_number(cpu + "/thermal_throttle/core_throttle_count"))
      counters.n_throttles = base::checked_add(counters.n_throttles.value_or(0), *n);
  });
  return counters;
}

HealthFacts read_health(const std::string& root) {
  HealthFacts facts;
  read_kernel(root, facts);
  facts.memory = read_memory_limits(root);
  facts.default_budget = default_budget(facts.memory, read_process_memory().rss_bytes);
  facts.n_machine_cpus = count_list(read_text_file(root + "/sys/devices/system/cpu/online").value_or(""));
  facts.n_usable_cpus = usable_cpus();
  facts.cpu_quota = cpu_quota(root);
  facts.load = leading_number(read_text_file(root + "/proc/loadavg").value_or(""));
  facts.memory_pressure = pressure(read_text_file(root + "/proc/pressure/memory").value_or(""));
  const std::string meminfo = read_text_file(root + "/proc/meminfo").value_or("");
  facts.swap_total_bytes = find_number(meminfo, "SwapTotal:").value_or(0);
  facts.swap_free_bytes = find_number(meminfo, "SwapFree:").value_or(0);
  facts.huge_pages =
      chosen_word(read_text_file(root + "/sys/kernel/mm/transparent_hugepage/enabled").value_or(""));
  facts.io_uring_disabled = read_number(root + "/proc/sys/kernel/io_uring_disabled");
  facts.max_open_files = soft_limit(RLIMIT_NOFILE);
  facts.max_locked_bytes = soft_limit(RLIMIT_MEMLOCK);
  facts.hottest_celsius = hottest_zone(root);
  facts.counters = read_health_counters(root);
  return facts;
}

PlaceFacts read_place(const std::string& path, const std::string& root) {
  PlaceFacts facts;
  const std::string mounts = read_text_file(root + "/proc/self/mountinfo").value_or("");
  if (const auto mount = find_mount(mounts, path)) {
    facts.file_system = mount->file_system;
    facts.mount_point = mount->point;
  }
  struct statvfs space {};
  if (statvfs(path.c_str(), &space) == 0) {
    facts.free_bytes = base::checked_mul(space.f_bavail, space.f_frsize);
    facts.total_bytes = base::checked_mul(space.f_blocks, space.f_frsize);
  }
  return facts;
}

}  // namespace sluice::platform
