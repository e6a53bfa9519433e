// Goal: a region holds exactly the memory it was asked for, no more (budgets count it) and no less (no later
// faults). Method: mincore() and the resident size are the judges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "platform/memory.hpp"
#include "sluice/error.hpp"
#include "support/refused_calls.hpp"

namespace sluice::platform {
namespace {

using base::k_mib;

std::size_t page_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Pages of [data, data + bytes) that are in memory.
std::size_t resident_pages(const std::byte* data, std::size_t bytes) {
  std::vector<unsigned char> present((bytes + page_bytes() - 1) / page_bytes());
  if (mincore(const_cast<std::byte*>(data), bytes, present.data()) != 0) return SIZE_MAX;
  return static_cast<std::size_t>(
      std::count_if(present.begin(), present.end(), [](auto p) { return (p & 1) != 0; }));
}

TEST(MappedRegion, IsZeroedPageAlignedAndWritableToItsLastByte) {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, std::size_t{3 * k_mib},
                            std::size_t{4 * k_mib}, std::size_t{5 * k_mib + 12345}}) {
    for (bool prefault : {false, true}) {
      const MappedRegion region = MappedRegion::allocate(bytes, prefault);
      ASSERT_EQ(region.size(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % page_bytes(), 0u);
      EXPECT_EQ(region.data()[0], std::byte{0});
      EXPECT_EQ(region.data()[bytes - 1], std::byte{0});
      std::memset(region.data(), 0x5a, bytes);
      EXPECT_EQ(region.data()[bytes - 1], std::byte{0x5a});
    }
  }
}

TEST(MappedRegion, PrefaultMakesEveryPagePresent) {
  for (std::size_t bytes : {std::size_t{k_mib + 1}, std::size_t{9 * k_mib + 5000}}) {
    const MappedRegion region = MappedRegion::allocate(bytes, true);
    EXPECT_EQ(resident_pages(region.data(), bytes), (bytes + page_bytes() - 1) / page_bytes());
  }
}

TEST(MappedRegion, LargeRegionsStartWhereHugePagesDo) {
  const MappedRegion region = MappedRegion::allocate(7 * k_mib, false);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % (2 * k_mib), 0u);
}

TEST(MappedRegion, NeverTakesMoreMemoryThanItsSize) {
  // Just beyond three huge pages: rounding up would cost nearly 2 MiB per region.
  constexpr std::size_t k_bytes = 6 * k_mib + 4096;
  constexpr std::size_t k_regions = 16;
  std::vector<MappedRegion> regions;
  regions.reserve(k_regions);
  const std::uint64_t before = read_process_memory().rss_bytes;
  for (std::size_t i = 0; i < k_regions; ++i) regions.push_back(MappedRegion::allocate(k_bytes, true));
  const std::uint64_t grown = read_process_memory().rss_bytes - before;
  // Counters lag by at most 64 pages of four kinds on each reading; the list of present pages of a sanitizer
  // or the C library may grow meanwhile, all far below one huge page per region.
  constexpr std::uint64_t k_slack_bytes = 4 * k_mib;
  EXPECT_LE(grown, k_regions * k_bytes + k_slack_bytes);
  EXPECT_GE(grown + k_slack_bytes, k_regions * k_bytes);
}

TEST(MappedRegion, ReleaseZeroesExactlyTheRangeAndGivesItsPagesBack) {
  for (std::size_t bytes : {std::size_t{k_mib}, std::size_t{8 * k_mib}}) {
    MappedRegion region = MappedRegion::allocate(bytes, true);
    std::memset(region.data(), 0x77, bytes);
    const std::size_t offset = 10'000, length = 500'000;
    region.release_pages(offset, length);
    for (std::size_t i = 0; i < bytes; ++i) {
      const bool inside = i >= offset && i < offset + length;
      ASSERT_EQ(region.data()[i], inside ? std::byte{0} : std::byte{0x77}) << "at " << i;
    }
  }
}

TEST(MappedRegion, ReleasedPagesLeaveMemory) {
  constexpr std::size_t k_bytes = 16 * k_mib;
  MappedRegion region = MappedRegion::allocate(k_bytes, true);
  region.release_pages(4 * k_mib, 8 * k_mib);
  EXPECT_EQ(resident_pages(region.data() + 4 * k_mib, 8 * k_mib), 0u);
  EXPECT_EQ(resident_pages(region.data(), 4 * k_mib), 4 * k_mib / page_bytes());
  region.release_pages(0, k_bytes);
  EXPECT_EQ(resident_pages(region.data(), k_bytes), 0u);
  region.data()[k_bytes - 1] = std::byte{1};  // The addresses are still ours.
}

TEST(MappedRegion, ReleaseToAnUnalignedEndGivesTheLastPageBack) {
  MappedRegion region = MappedRegion::allocate(3 * page_bytes() + 7, true);
  region.release_pages(2 * page_bytes(), page_bytes() + 7);
  EXPECT_EQ(resident_pages(region.data() + 2 * page_bytes(), 2 * page_bytes()), 0u);
}

/// What the kernel says when it is asked to bring pages.
test::RefusedCall populate_fails_with(int error) {
  constexpr std::uint32_t k_madv_populate_write = 23;
  return {SYS_madvise, error, 2, 0xffff'ffffu, k_madv_populate_write};
}

/// Releases and restores a range that shares its first and last page with neighbours.
void expect_restore_keeps_neighbours() {
  for (std::size_t bytes : {std::size_t{k_mib}, std::size_t{8 * k_mib}}) {
    MappedRegion region = MappedRegion::allocate(bytes, true);
    std::memset(region.data(), 0x77, bytes);
    const std::size_t offset = 10'000, length = bytes / 2;
    region.release_pages(offset, length);
    ASSERT_TRUE(region.restore_pages(offset, length));
    EXPECT_EQ(resident_pages(region.data(), bytes), bytes / page_bytes());
    for (std::size_t i = 0; i < bytes; ++i) {
      const bool inside = i >= offset && i < offset + length;
      ASSERT_EQ(region.data()[i], inside ? std::byte{0} : std::byte{0x77}) << "at " << i;
    }
    std::memset(region.data() + offset, 0x11, length);
    ASSERT_TRUE(region.restore_pages(offset, length));  // What is present stays.
    EXPECT_EQ(region.data()[offset], std::byte{0x11});
    EXPECT_EQ(region.data()[offset + length - 1], std::byte{0x11});
  }
}

TEST(MappedRegion, RestoredPagesArePresentAndNeighboursUntouched) {
  expect_restore_keeps_neighbours();
}

TEST(MappedRegion, RestoringTouchesPagesWithoutWritingWhereTheKernelCannotBringThem) {
  const test::RefusedCall calls[] = {populate_fails_with(EPERM)};
  if (!test::with_refused_calls(calls, expect_restore_keeps_neighbours)) GTEST_SKIP() << "no filters here";
}

TEST(MappedRegion, ARefusedRestoreLeavesNothingInMemory) {
  const test::RefusedCall calls[] = {populate_fails_with(ENOMEM)};
  const bool has_run = test::with_refused_calls(calls, [] {
    MappedRegion region = MappedRegion::allocate(8 * k_mib, false);
    std::memset(region.data(), 0x77, region.size());
    region.release_pages(2 * k_mib, 4 * k_mib);
    region.data()[3 * k_mib] = std::byte{1};  // As if the kernel had come so far.
    EXPECT_FALSE(region.restore_pages(2 * k_mib, 4 * k_mib));
    EXPECT_EQ(resident_pages(region.data() + 2 * k_mib, 4 * k_mib), 0u);
    EXPECT_EQ(region.data()[2 * k_mib - 1], std::byte{0x77});
    EXPECT_EQ(region.data()[6 * k_mib], std::byte{0x77});
  });
  if (!has_run) GTEST_SKIP() << "no filters here";
}

TEST(MappedRegion, AChildDoesNotHaveIt) {
  for (std::size_t bytes : {page_bytes(), std::size_t{8 * k_mib}}) {
    const MappedRegion region = MappedRegion::allocate(bytes, true);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      unsigned char present = 0;
      const bool is_gone = mincore(region.data(), page_bytes(), &present) != 0 && errno == ENOMEM;
      _exit(is_gone ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << bytes;
    EXPECT_EQ(region.data()[0], std::byte{0});
  }
}

TEST(MappedRegion, MovesWithoutCopying) {
  MappedRegion first = MappedRegion::allocate(4096, true);
  std::byte* const data = first.data();
  MappedRegion second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0u);
  first = MappedRegion::allocate(8192, false);
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(first.size(), 4096u);
}

TEST(MappedRegion, NothingIsARegionToo) {
  MappedRegion region = MappedRegion::allocate(0, true);
  EXPECT_EQ(region.size(), 0u);
  region.release_pages(0, 0);
}

TEST(MappedRegion, AnImpossibleSizeIsABudgetErrorThatNamesIt) {
  for (std::size_t bytes : {std::size_t{1} << 60, SIZE_MAX, SIZE_MAX - 4096}) {
    try {
      MappedRegion::allocate(bytes, false);
      ADD_FAILURE() << bytes << " bytes were mapped";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::budget);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(base::format_bytes(bytes)));
    }
  }
}

}  // namespace
}  // namespace sluice::platform
