#include "platform/drive.hpp"

#include <dirent.h>

#include <algorithm>
#include <memory>

#include "base/checked.hpp"
#include "platform/mounts.hpp"
#include "platform/text_files.hpp"

namespace sluice::platform {
namespace {

constexpr std::uint64_t k_sector_bytes = 512;  // The unit of /sys/block/*/size, whatever the drive's sectors.
constexpr std::size_t k_max_members = 64;

/// The first line without blanks around it; empty when there is no such file.
std::string read_line(const std::string& path) {
  const auto text = read_text_file(path);
  if (!text) return {};
  std::string_view line = std::string_view(*text).substr(0, text->find('\n'));
  const std::size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  line = line.substr(first, line.find_last_not_of(" \t") - first + 1);
  return std::string(line);
}

std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), &closedir);
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && names.size() < k_max_members) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// "MAJOR:MINOR" of a block device, or nothing.
std::string block_device_of(const Mount& mount, const std::string& root) {
  if (!mount.device.starts_with("0:")) return mount.device;
  // File systems that span drives have a number of their own; the mount's source is one of the drives.
  constexpr std::string_view k_dev = "/dev/";
  if (!mount.source.starts_with(k_dev)) return {};
  const std::string name = mount.source.substr(k_dev.size());
  if (name.find('/') != std::string::npos) return {};
  return read_line(root + "/sys/class/block/" + name + "/dev");
}

}  // namespace

DriveFacts read_drive_facts(const std::string& path, const std::string& root) {
  DriveFacts facts;
  const auto mounts = read_text_file(root + "/proc/self/mountinfo");
  const auto mount = find_mount(mounts.value_or(""), path);
  if (!mount) return facts;
  facts.file_system = mount->file_system;
  facts.name = mount->source;
  const std::string device = block_device_of(*mount, root);
  if (device.empty() || device.find('/') != std::string::npos) return facts;
  std::string folder = root + "/sys/dev/block/" + device;
  // A partition's folder lies in that of its drive.
  if (read_text_file(folder + "/partition")) folder += "/..";
  facts.device = read_line(folder + "/dev");
  if (facts.device.empty()) return facts;
  const auto uevent = read_text_file(folder + "/uevent");
  for_each_line(uevent.value_or(""), [&facts](std::string_view line) {
    constexpr std::string_view k_key = "DEVNAME=";
    if (line.starts_with(k_key)) facts.name = line.substr(k_key.size());
  });
  facts.model = read_line(folder + "/device/model");
  facts.serial = read_line(folder + "/device/serial");
  // Virtual drives have it one level up, and others an identity of another kind.
  if (facts.serial.empty()) facts.serial = read_line(folder + "/serial");
  if (facts.serial.empty()) facts.serial = read_line(folder + "/wwid");
  if (facts.serial.empty()) facts.serial = read_line(folder + "/dm/uuid");
  if (const auto rotational = parse_number(read_line(folder + "/queue/rotational")))
    facts.is_rotational = *rotational != 0;
  if (const auto sectors = parse_number(read_line(folder + "/size")))
    facts.size_bytes = base::checked_mul(*sectors, k_sector_bytes).value_or(0);
  facts.members = list_folder(folder + "/slaves");
  return facts;
}

}  // namespace sluice::platform
