#include "platform/cgroup.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "platform/mounts.hpp"
#include "platform/text_files.hpp"

namespace sluice::platform {
namespace {

// A group path is as deep as somebody made it; no real one comes near this.
constexpr int k_max_depth = 256;

bool is_directory(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool list_contains(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

/// Mounts of the controller's hierarchy. Their root is the group that they show as their top.
std::vector<Mount> find_mounts(std::string_view mountinfo, int version, std::string_view controller) {
  std::vector<Mount> mounts = parse_mounts(mountinfo);
  std::erase_if(mounts, [&](const Mount& mount) {
    if (version == 2) return mount.file_system != "cgroup2";
    return mount.file_system != "cgroup" || !list_contains(mount.super_options, controller);
  });
  return mounts;
}

// Line: id:controllers:path. v2 has id 0 and no controllers.
std::optional<std::string> find_group(std::string_view cgroup, int version, std::string_view controller) {
  std::optional<std::string> found;
  for_each_line(cgroup, [&](std::string_view line) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (found || second == std::string_view::npos) return;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool wanted = version == 2 ? line.substr(0, first) == "0" && controllers.empty()
                                     : list_contains(controllers, controller);
    if (wanted) found = std::string(line.substr(second + 1));
  });
  return found;
}

// Folder of `group` below the mount, "" for the mount itself. Nothing when the mount shows another part of
// the tree, as a bind mount into a container does.
std::optional<std::string> path_below(const Mount& mount, const std::string& group) {
  if (group.empty() || group[0] != '/') return std::nullopt;
  // A process outside its cgroup namespace's top is shown as "/../other".
  if (group.find("/..") != std::string::npos) return std::nullopt;
  std::string relative = group;
  if (mount.root != "/") {
    if (group.compare(0, mount.root.size(), mount.root) != 0) return std::nullopt;
    relative = group.substr(mount.root.size());
    if (!relative.empty() && relative[0] != '/') return std::nullopt;
  }
  while (!relative.empty() && relative.back() == '/') relative.pop_back();
  return relative;
}

void add_groups(const std::string& root, const std::vector<Mount>& mounts, const std::string& group,
                int version, std::vector<ControlGroup>& out) {
  if (mounts.empty()) return;
  const Mount* mount = &mounts.front();
  std::string relative;
  for (const Mount& candidate : mounts) {
    const auto below = path_below(candidate, group);
    if (below && is_directory(root + candidate.point + *below)) {
      mount = &candidate;
      relative = *below;
      break;
    }
  }
  for (int depth = 0; depth < k_max_depth; ++depth) {
    out.push_back({mount->point + relative, version});
    if (relative.empty()) return;
    relative.resize(relative.rfind('/'));
  }
}

std::optional<double> group_cpu_quota(const std::string& root, const ControlGroup& group) {
  const std::string folder = root + group.path;
  std::optional<std::uint64_t> quota, period;
  if (group.version == 2) {
    const auto text = read_text_file(folder + "/cpu.max");
    if (!text) return std::nullopt;
    std::string_view rest = *text;
    quota = parse_number(take_word(rest));  // "max" is no number: no quota.
    period = parse_number(take_word(rest));
  } else {
    const auto quota_text = read_text_file(folder + "/cpu.cfs_quota_us");
    const auto period_text = read_text_file(folder + "/cpu.cfs_period_us");
    if (!quota_text || !period_text) return std::nullopt;
    quota = parse_number(*quota_text);  // "-1" is no number either.
    period = parse_number(*period_text);
  }
  if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& root, std::string_view controller) {
  bool ignored = true;
  return control_groups(root, controller, &ignored);
}

std::vector<ControlGroup> control_groups(const std::string& root, std::string_view controller,
                                         bool* are_known) {
  std::vector<ControlGroup> groups;
  const auto mountinfo = read_text_file(root + "/proc/self/mountinfo");
  const auto cgroup = read_text_file(root + "/proc/self/cgroup");
  *are_known = mountinfo.has_value();
  if (!mountinfo || !cgroup) return groups;  // A kernel without groups has no such file, but mounts.
  bool is_in_a_group = false;
  for (int version : {1, 2}) {
    const auto group = find_group(*cgroup, version, controller);
    is_in_a_group = is_in_a_group || group;
    if (group) add_groups(root, find_mounts(*mountinfo, version, controller), *group, version, groups);
  }
  *are_known = !is_in_a_group || !groups.empty();
  return groups;
}

double cpu_quota(const std::string& root) {
  double smallest = 0;
  for (const ControlGroup& group : control_groups(root, "cpu")) {
    const auto quota = group_cpu_quota(root, group);
    if (quota && (smallest == 0 || *quota < smallest)) smallest = *quota;
  }
  return smallest;
}

}  // namespace sluice::platform
