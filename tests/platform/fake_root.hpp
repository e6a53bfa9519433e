#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "support/temp_dir.hpp"

namespace sluice::test {

/// A folder that imitates /proc and /sys of some machine.
class FakeRoot {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = folder_.path().string() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream file(full, std::ios::binary | std::ios::trunc);
    file << text;
    if (!file) throw std::runtime_error("cannot write " + full.string());
  }
  std::string path() const { return folder_.path().string(); }

  void meminfo(std::uint64_t total_bytes, std::uint64_t available_bytes) {
    write("/proc/meminfo", "MemTotal:       " + std::to_string(total_bytes / 1024) +
                               " kB\nMemFree:  100 kB\nMemAvailable:   " +
                               std::to_string(available_bytes / 1024) + " kB\nBuffers: 0 kB\n");
  }
  /// One cgroup v2 tree, mounted where systemd mounts it.
  void mount_v2(const std::string& own_group, const std::string& mounted_group = "/") {
    write("/proc/self/mountinfo",
          "24 1 0:22 / /sys rw - sysfs sysfs rw\n30 24 0:26 " + mounted_group +
              " /sys/fs/cgroup rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw,nsdelegate\n");
    write("/proc/self/cgroup", "0::" + own_group + "\n");
  }
  /// v1 controllers and, as on hybrid systems, a v2 tree that controls nothing.
  void mount_hybrid(const std::string& own_group, const std::string& mounted_group = "/") {
    write("/proc/self/mountinfo", "33 32 0:30 " + mounted_group +
                                      " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                                      "34 32 0:31 " +
                                      mounted_group +
                                      " /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n"
                                      "40 32 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    write("/proc/self/cgroup",
          "9:name=systemd:/\n5:memory:" + own_group + "\n4:cpu,cpuacct:" + own_group + "\n0::/\n");
  }

 private:
  TempDir folder_;
};

}  // namespace sluice::test
