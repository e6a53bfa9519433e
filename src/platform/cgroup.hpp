#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::platform {

/// One control group this process is in.
struct ControlGroup {
  std::string path;  ///< Folder as the process sees it (without the test root).
  int version = 2;   ///< 1 or 2.
};

/// The groups that may bound this process for one controller ("memory", "cpu"): its own group first, then
/// every ancestor up to the mount, of each hierarchy (a hybrid system has a v1 and a v2 one).
///
/// Mounts come from /proc/self/mountinfo, the group from /proc/self/cgroup, both below `root`. In a container
/// the group's path often does not exist below the mount: then the mount itself is the group. See cgroups(7).
std::vector<ControlGroup> control_groups(const std::string& root, std::string_view controller);
/// The same. *are_known becomes false when the process is in a group of this controller and no mount shows
/// any of its hierarchy, or /proc does not say.
std::vector<ControlGroup> control_groups(const std::string& root, std::string_view controller,
                                         bool* are_known);

/// The smallest CPU quota of these groups in CPUs (v2 cpu.max, v1 cpu.cfs_quota_us / cpu.cfs_period_us);
/// 0 when there is none.
double cpu_quota(const std::string& root);

}  // namespace sluice::platform
