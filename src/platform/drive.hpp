#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::platform {

/// The block device below a file. What the system does not say is empty.
struct DriveFacts {
  std::string name;    ///< "nvme0n1": the whole drive, not the partition; else the mount's source.
  std::string device;  ///< "259:0", empty when no block device was found.
  std::string model;   ///< "Samsung SSD 990 PRO 2TB".
  std::string serial;
  std::string file_system;  ///< "ext4".
  std::optional<bool> is_rotational;
  std::uint64_t size_bytes = 0;
  std::vector<std::string> members;  ///< Of an array or a mapped device, by name.
};

/// Facts about the drive that holds an absolute path without symbolic links, from /proc and /sys below `root`
/// (tests pass a folder that imitates them; "" is the real one).
DriveFacts read_drive_facts(const std::string& path, const std::string& root = "");

}  // namespace sluice::platform
