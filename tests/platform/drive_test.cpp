// Goal: a file's drive is found through mounts, partitions and file systems of several drives, and described
// as the system describes it.
#include "platform/drive.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "platform/fake_root.hpp"
#include "platform/mounts.hpp"

namespace sluice::platform {
namespace {

constexpr const char* k_mounts =
    "26 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n"
    "30 26 8:1 / /data rw master:2 shared:3 - xfs /dev/sda1 rw\n"
    "31 26 0:40 / /data/my\\040models rw - btrfs /dev/sdb rw,subvol=/x\n"
    "32 26 0:41 / /net rw - nfs4 server:/export rw\n"
    "garbled line\n"
    "33 26 8:1\n";

TEST(FindMount, TheLongestMountPointAboveAPathWins) {
  EXPECT_EQ(find_mount(k_mounts, "/srv/m.gguf")->device, "259:2");
  EXPECT_EQ(find_mount(k_mounts, "/data/m.gguf")->device, "8:1");
  EXPECT_EQ(find_mount(k_mounts, "/data")->device, "8:1");
  // A name that begins alike is another folder.
  EXPECT_EQ(find_mount(k_mounts, "/database/m.gguf")->device, "259:2");
  const auto escaped = find_mount(k_mounts, "/data/my models/m.gguf");
  ASSERT_TRUE(escaped);
  EXPECT_EQ(escaped->point, "/data/my models");
  EXPECT_EQ(escaped->file_system, "btrfs");
  EXPECT_EQ(escaped->source, "/dev/sdb");
}

TEST(FindMount, TheLastOfSeveralAtOnePointHidesTheOthers) {
  const auto mount =
      find_mount("1 0 8:1 / /a rw - ext4 /dev/sda1 rw\n2 0 8:2 / /a rw - xfs /dev/sda2 rw\n", "/a/b");
  EXPECT_EQ(mount->device, "8:2");
}

TEST(FindMount, NothingAboveIsNothing) {
  EXPECT_FALSE(find_mount("", "/a"));
  EXPECT_FALSE(find_mount("1 0 8:1 / /b rw - ext4 /dev/sda1 rw\n", "/a"));
  EXPECT_FALSE(find_mount(k_mounts, "relative"));
}

/// A drive with a partition, laid out and linked as in /sys.
class FakeDrives : public test::FakeRoot {
 public:
  FakeDrives() {
    write("/proc/self/mountinfo", k_mounts);
    const std::string nvme = "/sys/devices/pci/nvme0n1";
    write(nvme + "/dev", "259:0\n");
    write(nvme + "/uevent", "MAJOR=259\nMINOR=0\nDEVNAME=nvme0n1\nDEVTYPE=disk\n");
    write(nvme + "/size", "2000\n");
    write(nvme + "/queue/rotational", "0\n");
    write(nvme + "/device/model", "Samsung SSD 990 PRO 2TB                 \n");
    write(nvme + "/device/serial", "S7HENU0W\n");
    write(nvme + "/nvme0n1p2/dev", "259:2\n");
    write(nvme + "/nvme0n1p2/partition", "2\n");
    write(nvme + "/nvme0n1p2/size", "1000\n");
    link(nvme + "/nvme0n1p2", "/sys/dev/block/259:2");
    link(nvme, "/sys/dev/block/259:0");
  }
  void link(const std::string& target, const std::string& at) {
    const std::filesystem::path full = path() + at;
    std::filesystem::create_directories(full.parent_path());
    std::filesystem::create_symlink(path() + target, full);
  }
};

TEST(DriveFacts, APartitionLeadsToItsDrive) {
  const FakeDrives root;
  const DriveFacts facts = read_drive_facts("/srv/m.gguf", root.path());
  EXPECT_EQ(facts.name, "nvme0n1");
  EXPECT_EQ(facts.device, "259:0");
  EXPECT_EQ(facts.model, "Samsung SSD 990 PRO 2TB");
  EXPECT_EQ(facts.serial, "S7HENU0W");
  EXPECT_EQ(facts.file_system, "ext4");
  EXPECT_EQ(facts.is_rotational, std::optional(false));
  EXPECT_EQ(facts.size_bytes, 2000u * 512);
  EXPECT_TRUE(facts.members.empty());
}

TEST(DriveFacts, AFileSystemOfItsOwnNumberLeadsToItsSource) {
  FakeDrives root;
  root.write("/sys/class/block/sdb/dev", "8:16\n");
  root.write("/sys/dev/block/8:16/dev", "8:16\n");
  root.write("/sys/dev/block/8:16/uevent", "DEVNAME=sdb\n");
  root.write("/sys/dev/block/8:16/queue/rotational", "1\n");
  root.write("/sys/dev/block/8:16/serial", "V1\n");
  const DriveFacts facts = read_drive_facts("/data/my models/m.gguf", root.path());
  EXPECT_EQ(facts.name, "sdb");
  EXPECT_EQ(facts.file_system, "btrfs");
  EXPECT_EQ(facts.serial, "V1");
  EXPECT_EQ(facts.is_rotational, std::optional(true));
}

TEST(DriveFacts, ArraysNameTheirMembers) {
  FakeDrives root;
  root.write("/sys/dev/block/8:1/dev", "8:1\n");
  root.write("/sys/dev/block/8:1/slaves/sdd/dev", "8:48\n");
  root.write("/sys/dev/block/8:1/slaves/sdc/dev", "8:32\n");
  EXPECT_EQ(read_drive_facts("/data/m.gguf", root.path()).members, (std::vector<std::string>{"sdc", "sdd"}));
}

TEST(DriveFacts, WithoutABlockDeviceTheMountsSourceIsTheName) {
  const FakeDrives root;
  const DriveFacts facts = read_drive_facts("/net/m.gguf", root.path());
  EXPECT_EQ(facts.name, "server:/export");
  EXPECT_EQ(facts.file_system, "nfs4");
  EXPECT_EQ(facts.device, "");
  EXPECT_FALSE(facts.is_rotational);
}

TEST(DriveFacts, GarbageInSysIsLeftOut) {
  FakeDrives root;
  root.write("/sys/dev/block/8:1/dev", "8:1\n");
  root.write("/sys/dev/block/8:1/size", "18446744073709551615\n");
  root.write("/sys/dev/block/8:1/queue/rotational", "maybe\n");
  const DriveFacts facts = read_drive_facts("/data/m.gguf", root.path());
  EXPECT_EQ(facts.size_bytes, 0u);
  EXPECT_FALSE(facts.is_rotational);
}

TEST(DriveFacts, NoProcIsNoFact) {
  const test::FakeRoot root;
  EXPECT_EQ(read_drive_facts("/a", root.path()).name, "");
}

TEST(DriveFacts, ThisTestsOwnFolderLiesSomewhere) {
  EXPECT_NE(read_drive_facts(std::filesystem::current_path().string()).file_system, "");
}

}  // namespace
}  // namespace sluice::platform
