// Goal: the budget is hard. Method: the program itself under budgets from its floor upwards; the kernel's own
// peak of resident memory must stay below each, bytes read must be what the kernel counted, and inside a
// memory cgroup hardly larger than the budget the process must live.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "system/memory_cgroup.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t k_mib = 1u << 20;

std::vector<std::string> story(std::uint64_t memory_bytes, const std::string& threads = "2") {
  return {"run",       "tales", "-p",       "Once upon a time, there was a little fox who",
          "-n",        "64",    "--temp",   "0",
          "--ctx",     "512",   "--memory", std::to_string(memory_bytes),
          "--threads", threads, "--json"};
}

nlohmann::json run_story(std::uint64_t memory_bytes, const std::string& threads = "2") {
  const Outcome outcome = sluice(story(memory_bytes, threads));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

std::uint64_t floor_bytes() {
  static const std::uint64_t k_floor = run_story(1024 * k_mib)["plan"]["floor_bytes"].get<std::uint64_t>();
  return k_floor;
}

TEST(Budget, MoreThanTheGroupHasIsRefusedWithBothFigures) {
  const MemoryCgroup group(64 * k_mib);
  if (group.folder().empty()) GTEST_SKIP() << "this user may not make a memory cgroup";
  const Outcome outcome = Process(group.command(story(65 * k_mib)), {}).wait();
  EXPECT_EQ(outcome.status, 1);
  for (const char* part : {"65.0 MiB", "64.0 MiB", "memory cgroup", "--memory 64M"})
    EXPECT_THAT(outcome.err, ::testing::HasSubstr(part));
}

TEST(Budget, MoreThanTheMachineHasIsRefused) {
  const Outcome outcome = sluice(story(std::uint64_t{1} << 55));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("is more than there is"));
}

/// The floor counts the process as it is at that moment, which varies by some pages from run to run.
constexpr std::uint64_t k_floor_slack = k_mib / 2;

TEST(Budget, FloorOfTheBuiltInModelIsLean) {
  EXPECT_LE(floor_bytes(), 24 * k_mib);
}

TEST(Budget, PeakMemoryStaysBelowEveryBudget) {
  std::string text;
  for (const std::uint64_t extra :
       {std::uint64_t{0}, 1 * k_mib, 2 * k_mib, 4 * k_mib, 8 * k_mib, 16 * k_mib, 64 * k_mib}) {
    const std::uint64_t budget = floor_bytes() + k_floor_slack + extra;
    const nlohmann::json result = run_story(budget);
    const auto& stats = result["stats"];
    EXPECT_LE(stats["peak_rss_bytes"].get<std::uint64_t>(), budget) << "budget " << budget;
    if (text.empty()) text = result["text"];
    EXPECT_EQ(result["text"].get<std::string>(), text) << "budget " << budget;
    if (extra == 0) {
      EXPECT_GT(stats["n_misses"].get<std::uint64_t>(), 0u);
    }
    if (extra == 64 * k_mib) {
      EXPECT_EQ(stats["n_misses"].get<std::uint64_t>(), 0u);
    }
  }
}

TEST(Budget, BytesReadAreWhatTheKernelCounted) {
  // The kernel also counts pages of the program and its libraries that were not in memory: the first run
  // brings them in, and on a machine short of memory they may be gone again, so a few runs may try. A wrong
  // count never fits.
  std::uint64_t counted = 0, by_kernel = 1;
  for (int attempt = 0; attempt < 4 && counted != by_kernel; ++attempt) {
    const nlohmann::json stats = run_story(floor_bytes() + k_floor_slack)["stats"];
    if (stats["io_backend"].get<std::string>().find("O_DIRECT") == std::string::npos) {
      GTEST_SKIP() << "the file system here refuses O_DIRECT, so the kernel serves reads from its cache";
    }
    if (stats["kernel_read_bytes"].is_null())
      GTEST_SKIP() << "the kernel does not count reads per process here";
    counted = stats["read_bytes"].get<std::uint64_t>();
    by_kernel = stats["kernel_read_bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(counted, by_kernel);
}

TEST(Budget, BelowTheFloorIsRefusedWithTheFloor) {
  const Outcome outcome = sluice(story(4 * k_mib));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("at least"));
  EXPECT_EQ(outcome.out, "");
}

TEST(Budget, ACgroupHardlyLargerThanTheBudgetNeverKills) {
  for (const std::uint64_t extra : {std::uint64_t{0}, 4 * k_mib, 12 * k_mib}) {
    const std::uint64_t budget = floor_bytes() + k_floor_slack + extra;
    const MemoryCgroup group(budget + std::max(budget / 20, 8 * k_mib));
    if (group.folder().empty()) GTEST_SKIP() << "this user may not make a memory cgroup";
    const Outcome outcome = Process(group.command(story(budget)), {}).wait();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  }
}

TEST(Budget, DefaultInsideACgroupFitsIt) {
  const std::uint64_t limit = 32 * k_mib;
  const MemoryCgroup group(limit);
  if (group.folder().empty()) GTEST_SKIP() << "this user may not make a memory cgroup";
  const Outcome outcome =
      Process(group.command({"run", "tales", "-p", "Once upon a time", "-n", "40", "--temp", "0", "--json"}),
              {})
          .wait();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_LE(result["plan"]["budget_bytes"].get<std::uint64_t>(), limit);
  EXPECT_LE(result["stats"]["peak_rss_bytes"].get<std::uint64_t>(),
            result["plan"]["budget_bytes"].get<std::uint64_t>());
}

}  // namespace
}  // namespace sluice::test
