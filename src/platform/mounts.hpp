#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::platform {

/// One line of a mount table.
struct Mount {
  std::string device;         ///< "259:2"; a major number of 0 is no block device.
  std::string root;           ///< The folder of the file system that is seen at the mount point.
  std::string point;          ///< "/home".
  std::string file_system;    ///< "ext4".
  std::string source;         ///< "/dev/nvme0n1p2", "overlay", "server:/export".
  std::string super_options;  ///< Of the file system, separated by commas.
};

/// The lines of a text like /proc/self/mountinfo (proc(5)), in order. Those that are garbled are left out.
std::vector<Mount> parse_mounts(std::string_view mountinfo);

/// The mount that holds an absolute path without symbolic links: the one with the longest mount point above
/// it, and of several at one point the last, which hides the others.
std::optional<Mount> find_mount(std::string_view mountinfo, std::string_view path);

}  // namespace sluice::platform
