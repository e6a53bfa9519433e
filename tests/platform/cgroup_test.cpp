// Goal: the groups that bound a process are found on every layout of hierarchies that systems use. Method:
// trees of files that imitate them.
#include "platform/cgroup.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "platform/fake_root.hpp"

namespace sluice::platform {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> paths(const test::FakeRoot& root, std::string_view controller) {
  std::vector<std::string> found;
  for (const ControlGroup& group : control_groups(root.path(), controller)) found.push_back(group.path);
  return found;
}

TEST(ControlGroups, ListsOwnGroupAndEveryAncestorOfV2) {
  test::FakeRoot root;
  root.mount_v2("/user.slice/app.scope");
  root.write("/sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n");
  EXPECT_THAT(paths(root, "memory"), ElementsAre("/sys/fs/cgroup/user.slice/app.scope",
                                                 "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"));
}

TEST(ControlGroups, ListsBothHierarchiesOfAHybridSystem) {
  test::FakeRoot root;
  root.mount_hybrid("/job");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1\n");
  root.write("/sys/fs/cgroup/unified/cgroup.procs", "");
  const auto groups = control_groups(root.path(), "memory");
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].path, "/sys/fs/cgroup/memory/job");
  EXPECT_EQ(groups[0].version, 1);
  EXPECT_EQ(groups[1].path, "/sys/fs/cgroup/memory");
  EXPECT_EQ(groups[2].path, "/sys/fs/cgroup/unified");
  EXPECT_EQ(groups[2].version, 2);
}

TEST(ControlGroups, TakesTheMountWhenAContainerHidesTheGroup) {
  test::FakeRoot root;
  root.mount_v2("/docker/0123abcd");  // Nothing of that name exists below the mount.
  EXPECT_THAT(paths(root, "memory"), ElementsAre("/sys/fs/cgroup"));
}

TEST(ControlGroups, StripsTheMountedPartOfTheGroup) {
  test::FakeRoot root;
  root.mount_v2("/docker/0123/inner", "/docker/0123");
  root.write("/sys/fs/cgroup/inner/memory.max", "max\n");
  EXPECT_THAT(paths(root, "memory"), ElementsAre("/sys/fs/cgroup/inner", "/sys/fs/cgroup"));
}

TEST(ControlGroups, DoesNotMistakeALongerNameForTheMountedPart) {
  test::FakeRoot root;
  root.mount_v2("/docker/01234/inner", "/docker/0123");
  root.write("/sys/fs/cgroup/4/inner/memory.max", "1\n");
  EXPECT_THAT(paths(root, "memory"), ElementsAre("/sys/fs/cgroup"));
}

TEST(ControlGroups, TakesTheMountWhenTheProcessIsOutsideItsNamespace) {
  test::FakeRoot root;
  root.mount_v2("/../other");
  root.write("/sys/fs/other/memory.max", "1\n");
  EXPECT_THAT(paths(root, "memory"), ElementsAre("/sys/fs/cgroup"));
}

TEST(ControlGroups, ReadsEscapedMountPoints) {
  test::FakeRoot root;
  root.write("/proc/self/mountinfo", "30 24 0:26 / /my\\040mount\\134x rw - cgroup2 cgroup2 rw\n");
  root.write("/proc/self/cgroup", "0::/\n");
  EXPECT_THAT(paths(root, "memory"), ElementsAre("/my mount\\x"));
}

TEST(ControlGroups, FindsNothingInMissingOrGarbledTables) {
  test::FakeRoot root;
  EXPECT_THAT(paths(root, "memory"), IsEmpty());
  root.write("/proc/self/mountinfo", "garbage\n\n30 - cgroup2\n- - - - -\n\\\\\\9 x");
  root.write("/proc/self/cgroup", "::\n0:\nmemory\n0:memory\n");
  EXPECT_THAT(paths(root, "memory"), IsEmpty());
}

TEST(CpuQuota, TakesTheSmallestOfAllAncestors) {
  test::FakeRoot root;
  root.mount_v2("/a/b");
  root.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 0);
  root.write("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 2.5);
  root.write("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 2.5);
}

TEST(CpuQuota, ReadsV1AndItsSharedController) {
  test::FakeRoot root;
  root.mount_hybrid("/job");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "150000\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 1.5);
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpu_quota(root.path()), 0);
}

TEST(CpuQuota, IgnoresZeroesAndGarbage) {
  test::FakeRoot root;
  root.mount_v2("/a");
  for (const char* text :
       {"", "0 100000", "100000 0", "100000", "x y", "99999999999999999999999 100000", "-5 100"}) {
    root.write("/sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(cpu_quota(root.path()), 0) << text;
  }
}

}  // namespace
}  // namespace sluice::platform
