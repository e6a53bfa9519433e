// Goal: the default budget never promises memory that a group, an ancestor or the machine will not give.
// Method: imitated /proc and /sys trees for the readers, edge values for the pure function.
#include "platform/memory.hpp"

#include <gtest/gtest.h>

#include "base/units.hpp"
#include "platform/fake_root.hpp"

namespace sluice::platform {
namespace {

using base::k_gib;
using base::k_mib;

std::string text(std::uint64_t number) {
  return std::to_string(number) + "\n";
}

TEST(MemoryLimits, ReadsTheMachine) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  const MemoryLimits limits = read_memory_limits(root.path());
  EXPECT_EQ(limits.total_bytes, 24 * k_gib);
  EXPECT_EQ(limits.available_bytes, 20 * k_gib);
  EXPECT_FALSE(limits.cgroup_limit_bytes);
  EXPECT_EQ(limits.cgroup_path, "");
}

TEST(MemoryLimits, EstimatesAvailableMemoryOfOldKernels) {
  test::FakeRoot root;
  root.write("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 200 kB\nSwapCached: 7 kB\n");
  EXPECT_EQ(read_memory_limits(root.path()).available_bytes, 300u * 1024);
}

TEST(MemoryLimits, V2UsageLeavesOutFilePages) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  root.mount_v2("/app");
  root.write("/sys/fs/cgroup/app/memory.max", text(6 * k_gib));
  root.write("/sys/fs/cgroup/app/memory.high", "max\n");
  root.write("/sys/fs/cgroup/app/memory.current", text(3 * k_gib));
  root.write("/sys/fs/cgroup/app/memory.stat", "anon 5\nfile 9\ninactive_file " + text(k_gib) +
                                                   "active_file " + text(512 * k_mib) + "unevictable 0\n");
  const MemoryLimits limits = read_memory_limits(root.path());
  EXPECT_EQ(limits.cgroup_limit_bytes, 6 * k_gib);
  EXPECT_EQ(limits.cgroup_unreclaimable_bytes, k_gib + 512 * k_mib);
  EXPECT_EQ(limits.cgroup_path, "/sys/fs/cgroup/app");
}

TEST(MemoryLimits, V2HighBoundsLikeMax) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  root.mount_v2("/app");
  root.write("/sys/fs/cgroup/app/memory.high", text(2 * k_gib));
  root.write("/sys/fs/cgroup/app/memory.max", "max\n");
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_limit_bytes, 2 * k_gib);
  root.write("/sys/fs/cgroup/app/memory.max", text(1 * k_gib));
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_limit_bytes, 1 * k_gib);
  root.write("/sys/fs/cgroup/app/memory.max", text(3 * k_gib));
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_limit_bytes, 2 * k_gib);
}

TEST(MemoryLimits, AnAncestorThatLeavesLessWins) {
  test::FakeRoot root;
  root.meminfo(64 * k_gib, 60 * k_gib);
  root.mount_v2("/pod/container/app");
  root.write("/sys/fs/cgroup/pod/container/app/memory.max", text(8 * k_gib));
  root.write("/sys/fs/cgroup/pod/container/app/memory.current", text(100 * k_mib));
  root.write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  root.write("/sys/fs/cgroup/pod/memory.max", text(10 * k_gib));
  root.write("/sys/fs/cgroup/pod/memory.current", text(1 * k_gib));
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_path, "/sys/fs/cgroup/pod/container/app");
  // The larger limit binds once a sibling has used most of it.
  root.write("/sys/fs/cgroup/pod/memory.current", text(7 * k_gib));
  const MemoryLimits limits = read_memory_limits(root.path());
  EXPECT_EQ(limits.cgroup_path, "/sys/fs/cgroup/pod");
  EXPECT_EQ(limits.cgroup_limit_bytes, 10 * k_gib);
  EXPECT_EQ(limits.cgroup_unreclaimable_bytes, 7 * k_gib);
}

TEST(MemoryLimits, V1CountsTheWholeSubtree) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  root.mount_hybrid("/job");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", text(4 * k_gib));
  root.write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", text(2 * k_gib));
  root.write("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file " +
                                                          text(k_gib) + "total_active_file 4096\n");
  const MemoryLimits limits = read_memory_limits(root.path());
  EXPECT_EQ(limits.cgroup_limit_bytes, 4 * k_gib);
  EXPECT_EQ(limits.cgroup_unreclaimable_bytes, k_gib - 4096);
  EXPECT_EQ(limits.cgroup_path, "/sys/fs/cgroup/memory/job");
}

TEST(MemoryLimits, V1ContainerWithItsGroupAsTheMount) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  root.mount_hybrid("/docker/abc", "/docker/abc");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", text(512 * k_mib));
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_limit_bytes, 512 * k_mib);
}

TEST(MemoryLimits, TheTighterHierarchyOfAHybridSystemWins) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  root.mount_hybrid("/job");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", text(4 * k_gib));
  root.write("/sys/fs/cgroup/unified/memory.max", text(3 * k_gib));
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_limit_bytes, 3 * k_gib);
}

TEST(MemoryLimits, LimitsThatBindNothingAreNone) {
  test::FakeRoot root;
  root.mount_v2("/app");
  for (const char* none :
       {"max\n", "9223372036854771712\n", "9223372036854710272\n", "18446744073709551615\n"}) {
    root.write("/sys/fs/cgroup/app/memory.max", none);
    EXPECT_FALSE(read_memory_limits(root.path()).cgroup_limit_bytes) << none;
  }
  root.meminfo(24 * k_gib, 20 * k_gib);
  root.write("/sys/fs/cgroup/app/memory.max", text(24 * k_gib));
  EXPECT_FALSE(read_memory_limits(root.path()).cgroup_limit_bytes);
}

TEST(MemoryLimits, MissingAndGarbledFilesAreNoLimits) {
  test::FakeRoot root;
  const MemoryLimits nothing = read_memory_limits(root.path());
  EXPECT_EQ(nothing.total_bytes, 0u);
  EXPECT_EQ(nothing.available_bytes, 0u);
  EXPECT_FALSE(nothing.cgroup_limit_bytes);
  root.write("/proc/meminfo", "MemTotal: many kB\nMemAvailable:\nMemFree 7 kB\n:::\n");
  root.mount_v2("/app");
  for (const char* garbage :
       {"", "\n", "12 34\n", "0x10\n", "-1\n", "6G\n", "99999999999999999999999999\n"}) {
    root.write("/sys/fs/cgroup/app/memory.max", garbage);
    const MemoryLimits limits = read_memory_limits(root.path());
    EXPECT_FALSE(limits.cgroup_limit_bytes) << garbage;
    EXPECT_EQ(limits.total_bytes, 0u);
  }
  root.write("/sys/fs/cgroup/app/memory.max", text(k_gib));
  root.write("/sys/fs/cgroup/app/memory.current", "lots\n");
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_unreclaimable_bytes, 0u);
}

TEST(MemoryLimits, MoreCacheThanUsageIsNoUsage) {
  test::FakeRoot root;
  root.mount_v2("/app");
  root.write("/sys/fs/cgroup/app/memory.max", text(k_gib));
  root.write("/sys/fs/cgroup/app/memory.current", "4096\n");
  root.write("/sys/fs/cgroup/app/memory.stat", "inactive_file 8192\nactive_file 18446744073709551615\n");
  EXPECT_EQ(read_memory_limits(root.path()).cgroup_unreclaimable_bytes, 0u);
}

TEST(MemoryLimits, TheRealMachineIsReadable) {
  const MemoryLimits limits = read_memory_limits();
  EXPECT_GT(limits.total_bytes, 0u);
  EXPECT_GT(limits.available_bytes, 0u);
  EXPECT_LE(limits.available_bytes, limits.total_bytes);
  const std::uint64_t budget = default_budget_bytes(limits, read_process_memory().rss_bytes);
  EXPECT_GT(budget, 0u);
  EXPECT_LT(budget, limits.total_bytes);
}

MemoryLimits machine(std::uint64_t total, std::uint64_t available) {
  MemoryLimits limits;
  limits.total_bytes = total;
  limits.available_bytes = available;
  return limits;
}

TEST(DefaultBudget, LeavesTheMachineOneGibOrFivePercent) {
  EXPECT_EQ(default_budget_bytes(machine(16 * k_gib, 10 * k_gib), 0), 9 * k_gib);
  EXPECT_EQ(default_budget_bytes(machine(400 * k_gib, 100 * k_gib), 0), 80 * k_gib);
  // What the process holds already is no longer available, but it is its own.
  EXPECT_EQ(default_budget_bytes(machine(16 * k_gib, 10 * k_gib), 2 * k_gib), 11 * k_gib);
}

TEST(DefaultBudget, KeepsHalfOfWhatIsThere) {
  EXPECT_EQ(default_budget_bytes(machine(4 * k_gib, k_gib), 0), k_gib / 2);
  EXPECT_EQ(default_budget_bytes(machine(4 * k_gib, 2 * k_gib), 0), k_gib);
  EXPECT_EQ(default_budget_bytes(machine(4 * k_gib, 2 * k_gib + 2), 0), k_gib + 2);
}

TEST(DefaultBudget, ATinyGroupStillGetsNearlyAllOfIt) {
  MemoryLimits limits = machine(24 * k_gib, 20 * k_gib);
  limits.cgroup_limit_bytes = 32 * k_mib;
  limits.cgroup_unreclaimable_bytes = 4 * k_mib;
  const std::uint64_t without_headroom = 32 * k_mib - 32 * k_mib / 20;
  EXPECT_EQ(default_budget_bytes(limits, 4 * k_mib), without_headroom);
  // Another process of the group holds 8 MiB.
  limits.cgroup_unreclaimable_bytes = 12 * k_mib;
  EXPECT_EQ(default_budget_bytes(limits, 4 * k_mib), without_headroom - 8 * k_mib);
}

TEST(DefaultBudget, AFullGroupLeavesHalfOfTheRestOrNothing) {
  MemoryLimits limits = machine(24 * k_gib, 20 * k_gib);
  limits.cgroup_limit_bytes = 100 * k_mib;
  limits.cgroup_unreclaimable_bytes = 96 * k_mib;
  EXPECT_EQ(default_budget_bytes(limits, 0), 2 * k_mib);
  limits.cgroup_unreclaimable_bytes = 200 * k_mib;
  EXPECT_EQ(default_budget_bytes(limits, 0), 0u);
  // Pages of ours that were charged to another group do not make others negative.
  limits.cgroup_unreclaimable_bytes = 1 * k_mib;
  EXPECT_EQ(default_budget_bytes(limits, 50 * k_mib), 95 * k_mib);
}

TEST(DefaultBudget, TheMachineBindsWhenTheGroupIsLarger) {
  MemoryLimits limits = machine(16 * k_gib, 4 * k_gib);
  limits.cgroup_limit_bytes = 12 * k_gib;
  EXPECT_EQ(default_budget_bytes(limits, 0), 3 * k_gib);
}

TEST(DefaultBudget, AddressSpaceBinds) {
  MemoryLimits limits = machine(16 * k_gib, 10 * k_gib);
  limits.address_space_limit_bytes = 2 * k_gib;
  EXPECT_EQ(default_budget_bytes(limits, 0), 2 * k_gib - 2 * k_gib / 20);
}

TEST(DefaultBudget, IsSaneWithoutAnyFactsAndWithAbsurdOnes) {
  EXPECT_EQ(default_budget_bytes(MemoryLimits{}, 0), k_gib);
  MemoryLimits absurd = machine(UINT64_MAX, UINT64_MAX);
  absurd.cgroup_limit_bytes = UINT64_MAX;
  absurd.cgroup_unreclaimable_bytes = UINT64_MAX;
  EXPECT_LE(default_budget_bytes(absurd, UINT64_MAX), UINT64_MAX - UINT64_MAX / 20);
}

TEST(ProcessMemory, CountsTouchedPages) {
  const ProcessMemory before = read_process_memory();
  ASSERT_GT(before.rss_bytes, 0u);
  EXPECT_GE(before.peak_rss_bytes, before.rss_bytes);
  constexpr std::uint64_t k_bytes = 64 * k_mib;
  const MappedRegion region = MappedRegion::allocate(k_bytes, true);
  const ProcessMemory after = read_process_memory();
  // The kernel batches its counters per thread (up to 64 pages of each kind), on both readings.
  constexpr std::uint64_t k_slack_bytes = 2 * 4 * 64 * 4096;
  EXPECT_GE(after.rss_bytes + k_slack_bytes, before.rss_bytes + k_bytes);
  EXPECT_GE(after.peak_rss_bytes, after.rss_bytes);
}

TEST(ProcessMemory, KnowsWhatIsSwappedOut) {
  test::FakeRoot root;
  EXPECT_EQ(read_process_memory(root.path()).swapped_bytes, 0u) << "the system does not say";
  root.write("/proc/self/status", "VmHWM:\t  9000 kB\nVmRSS:\t  5000 kB\nVmSwap:\t  3000 kB\n");
  const ProcessMemory memory = read_process_memory(root.path());
  EXPECT_EQ(memory.swapped_bytes, std::uint64_t{3000} << 10);
  EXPECT_EQ(memory.rss_bytes, std::uint64_t{5000} << 10);
  EXPECT_EQ(memory.peak_rss_bytes, std::uint64_t{9000} << 10);
}

TEST(MemoryLimits, SaysWhenGroupsCannotBeSeen) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  EXPECT_FALSE(read_memory_limits(root.path()).groups_are_known) << "nothing tells about mounts";
  root.write("/proc/self/mountinfo", "20 1 0:19 / / rw - ext4 /dev/root rw\n");
  EXPECT_TRUE(read_memory_limits(root.path()).groups_are_known) << "a kernel without control groups";
  root.write("/proc/self/cgroup", "0::/\n");
  EXPECT_FALSE(read_memory_limits(root.path()).groups_are_known) << "a group without a mount";
  root.mount_v2("/app");
  EXPECT_TRUE(read_memory_limits(root.path()).groups_are_known);
}

TEST(MemoryReader, ReadsNumbersAnewFromTheGroupsItFound) {
  test::FakeRoot root;
  root.meminfo(24 * k_gib, 20 * k_gib);
  root.mount_v2("/app");
  root.write("/sys/fs/cgroup/app/memory.max", text(6 * k_gib));
  root.write("/sys/fs/cgroup/app/memory.current", text(3 * k_gib));
  const MemoryReader reader(root.path());
  EXPECT_EQ(reader.read().cgroup_unreclaimable_bytes, 3 * k_gib);
  root.meminfo(24 * k_gib, 10 * k_gib);
  root.write("/sys/fs/cgroup/app/memory.current", text(4 * k_gib));
  root.write("/proc/self/mountinfo", "");
  const MemoryLimits limits = reader.read();
  EXPECT_EQ(limits.available_bytes, 10 * k_gib);
  EXPECT_EQ(limits.cgroup_limit_bytes, 6 * k_gib);
  EXPECT_EQ(limits.cgroup_unreclaimable_bytes, 4 * k_gib);
}

TEST(DefaultBudget, NamesWhatIsSmallest) {
  using Source = DefaultBudget::Source;
  MemoryLimits limits;
  EXPECT_EQ(default_budget(limits, 0).source, Source::guess);
  limits.total_bytes = 64 * k_gib;
  limits.available_bytes = 8 * k_gib;
  EXPECT_EQ(default_budget(limits, 0).source, Source::available_memory);
  limits.cgroup_limit_bytes = 32 * k_gib;  // Less than the machine has, more than is free.
  EXPECT_EQ(default_budget(limits, 0).source, Source::available_memory);
  limits.address_space_limit_bytes = 4 * k_gib;
  EXPECT_EQ(default_budget(limits, 0).source, Source::resource_limit);
  limits.cgroup_limit_bytes = 2 * k_gib;
  EXPECT_EQ(default_budget(limits, 0).source, Source::control_group);
}

}  // namespace
}  // namespace sluice::platform
