// Goal: the state of a machine is read as /proc and /sys write it, and what is missing or garbled is left
// empty.
#include "platform/health.hpp"

#include <gtest/gtest.h>

#include "platform/fake_root.hpp"

namespace sluice::platform {
namespace {

TEST(Health, ReadsWhatTheSystemSays) {
  test::FakeRoot root;
  root.write("/proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
  root.write("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 80 kB\nSwapFree: 30 kB\n");
  root.write("/proc/loadavg", "3.25 1.00 0.50 2/345 6789\n");
  root.write(
      "/proc/pressure/memory",
      "some avg10=12.50 avg60=3.00 avg300=1.00 total=5\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n");
  root.write("/proc/vmstat", "nr_free_pages 5\npswpin 11\npswpout 22\n");
  root.write("/proc/sys/kernel/io_uring_disabled", "2\n");
  root.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.write("/sys/devices/system/cpu/online", "0-3,8-11\n");
  root.write("/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "4\n");
  root.write("/sys/devices/system/cpu/cpu11/thermal_throttle/core_throttle_count", "3\n");
  root.write("/sys/devices/system/cpu/cpufreq/thermal_throttle/core_throttle_count", "100\n");
  root.write("/sys/class/thermal/thermal_zone0/temp", "45000\n");
  root.write("/sys/class/thermal/thermal_zone1/temp", "71500\n");
  root.write("/sys/class/thermal/thermal_zone2/temp", "-274000\n");
  root.write("/sys/class/thermal/thermal_zone3/temp", "9999000\n");
  const HealthFacts facts = read_health(root.path());
  EXPECT_EQ(facts.kernel_major, 5);
  EXPECT_EQ(facts.kernel_minor, 15);
  EXPECT_EQ(facts.memory.total_bytes, 1000u * 1024);
  EXPECT_EQ(facts.swap_total_bytes, 80u * 1024);
  EXPECT_EQ(facts.swap_free_bytes, 30u * 1024);
  EXPECT_EQ(facts.load, 3.25);
  EXPECT_EQ(facts.memory_pressure, 12.5);
  EXPECT_EQ(facts.counters.n_swapped_in, 11u);
  EXPECT_EQ(facts.counters.n_swapped_out, 22u);
  EXPECT_EQ(facts.counters.n_throttles, 7u);
  EXPECT_EQ(facts.io_uring_disabled, 2u);
  EXPECT_EQ(facts.huge_pages, "madvise");
  EXPECT_EQ(facts.n_machine_cpus, 8);
  EXPECT_EQ(facts.hottest_celsius, 71.5);
}

TEST(Health, WhatIsMissingOrGarbledIsEmpty) {
  test::FakeRoot root;
  const HealthFacts nothing = read_health(root.path());
  EXPECT_EQ(nothing.kernel_major, 0);
  EXPECT_FALSE(nothing.load);
  EXPECT_FALSE(nothing.memory_pressure);
  EXPECT_FALSE(nothing.io_uring_disabled);
  EXPECT_FALSE(nothing.hottest_celsius);
  EXPECT_FALSE(nothing.counters.n_throttles);
  EXPECT_FALSE(nothing.counters.n_swapped_in);
  EXPECT_EQ(nothing.huge_pages, "");
  EXPECT_EQ(nothing.n_machine_cpus, 0);
  EXPECT_GT(nothing.n_usable_cpus, 0) << "of the process itself";
  root.write("/proc/sys/kernel/osrelease", "linux\n");
  root.write("/proc/loadavg", "busy\n");
  root.write("/proc/pressure/memory", "some avg10=\nsome\n");
  root.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise never\n");
  root.write("/sys/devices/system/cpu/online", "3-1,x,0-99999999999,5\n");
  root.write("/proc/vmstat", "pswpin many\n");
  const HealthFacts garbled = read_health(root.path());
  EXPECT_EQ(garbled.kernel_major, 0);
  EXPECT_FALSE(garbled.load);
  EXPECT_FALSE(garbled.memory_pressure);
  EXPECT_EQ(garbled.huge_pages, "");
  EXPECT_EQ(garbled.n_machine_cpus, 1);
  EXPECT_FALSE(garbled.counters.n_swapped_in);
}

TEST(Place, IsTheMountAndItsSpace) {
  test::FakeRoot root;
  root.write("/proc/self/mountinfo",
             "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:40 / /models rw - nfs4 server:/export rw\n");
  EXPECT_EQ(read_place("/models/m.gguf", root.path()).file_system, "nfs4");
  EXPECT_EQ(read_place("/models/m.gguf", root.path()).mount_point, "/models");
  EXPECT_FALSE(read_place("/models/m.gguf", root.path()).free_bytes) << "there is no such file";
  const PlaceFacts here = read_place(root.path(), root.path());
  EXPECT_EQ(here.file_system, "ext4");
  ASSERT_TRUE(here.free_bytes);
  EXPECT_LE(*here.free_bytes, *here.total_bytes);
}

}  // namespace
}  // namespace sluice::platform
