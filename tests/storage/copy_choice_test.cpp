// Goal: reads go to the copy that will have them first, and what one copy cannot deliver the other does.
// Method: the choice as a pure function; the queue over two copies on simulated drives, each of which serves
// one read after the other at its rate, on a clock of the test's own.
#include "storage/copy_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "platform/memory.hpp"
#include "storage/random_file.hpp"
#include "storage/read_queue.hpp"
#include "support/temp_dir.hpp"

namespace sluice::storage {
namespace {

using ::testing::HasSubstr;

TEST(ChooseCopy, TakesTheOneWithLessLeftByItsRate) {
  EXPECT_EQ(choose_copy({0, 1e9}, {0, 1e9}, 100), 0u) << "the first of equals";
  EXPECT_EQ(choose_copy({100, 1e9}, {0, 1e9}, 100), 1u);
  EXPECT_EQ(choose_copy({100, 3e9}, {0, 1e9}, 100), 0u) << "200 at three times the rate come before 100";
  EXPECT_EQ(choose_copy({300, 3e9}, {0, 1e9}, 100), 1u);
  EXPECT_EQ(choose_copy({0, 1e9}, {100, 3e9}, 100), 1u);
}

TEST(ChooseCopy, TakesAnUnknownRateForThatOfTheOther) {
  EXPECT_EQ(choose_copy({0, 0}, {0, 0}, 100), 0u);
  EXPECT_EQ(choose_copy({100, 0}, {0, 0}, 100), 1u);
  EXPECT_EQ(choose_copy({100, 1e9}, {0, 0}, 100), 1u);
  EXPECT_EQ(choose_copy({0, 0}, {100, 1e9}, 100), 0u);
}

TEST(ChooseCopy, LeavesAFailingCopyAloneUnlessBothFail) {
  EXPECT_EQ(choose_copy({0, 1e9, 0, true}, {1000, 1e6, 0, false}, 100), 1u);
  EXPECT_EQ(choose_copy({0, 1e9, 9999, true}, {1000, 1e6, 0, false}, 100), 1u);
  EXPECT_EQ(choose_copy({1000, 1e6, 0, false}, {0, 1e9, 9999, true}, 100), 0u);
  EXPECT_EQ(choose_copy({1000, 1e9, 0, true}, {0, 1e9, 0, true}, 100), 1u);
}

TEST(ChooseCopy, TriesOneAgainThatWasPassedOverForLong) {
  EXPECT_EQ(choose_copy({0, 1e9}, {0, 1, k_max_passed_over - 1}, 100), 0u);
  EXPECT_EQ(choose_copy({0, 1e9}, {0, 1, k_max_passed_over}, 100), 1u);
  EXPECT_EQ(choose_copy({0, 1, k_max_passed_over}, {0, 1e9}, 100), 0u);
}

TEST(DriveMeter, CountsTheTimeWithReadsOutstandingOnly) {
  constexpr std::uint64_t k_mib = 1u << 20, k_second = 1'000'000'000;
  DriveMeter meter;
  EXPECT_EQ(meter.bytes_per_second(), 0.0);
  meter.start(k_mib, 10 * k_second);
  meter.start(k_mib, 11 * k_second);
  EXPECT_EQ(meter.outstanding_bytes(), 2 * k_mib);
  meter.finish(k_mib, k_mib, 12 * k_second);
  meter.finish(k_mib, k_mib, 14 * k_second);
  EXPECT_EQ(meter.outstanding_bytes(), 0u);
  EXPECT_EQ(meter.busy_ns(), 4 * k_second);
  meter.start(k_mib, 100 * k_second);
  meter.retract(k_mib);
  meter.start(k_mib, 200 * k_second);
  meter.finish(k_mib, 0, 201 * k_second);  // A failed read takes time and brings nothing.
  EXPECT_EQ(meter.busy_ns(), 5 * k_second);
  EXPECT_EQ(meter.read_bytes(), 2 * k_mib);
  EXPECT_DOUBLE_EQ(meter.bytes_per_second(), 2.0 * k_mib / 5);
}

TEST(DriveMeter, ForgetsOldRates) {
  constexpr std::uint64_t k_mib = 1u << 20;
  DriveMeter meter;
  std::uint64_t now = 0;
  const auto read = [&](std::uint64_t n_mib, std::uint64_t ns_per_mib) {
    for (std::uint64_t i = 0; i < n_mib; ++i) {
      meter.start(k_mib, now);
      now += ns_per_mib;
      meter.finish(k_mib, k_mib, now);
    }
    return meter.bytes_per_second() / k_mib;
  };
  EXPECT_NEAR(read(1000, 1'000'000), 1000, 1);
  // 128 MiB remembered at most, halved each 64: after 640 more the old share is below 1/1000.
  EXPECT_NEAR(read(640, 10'000'000), 100, 1);
}

std::uint64_t g_now_ns = 0;

/// Drives that each serve one read after the other; reads are told apart by their descriptor.
class SimulatedDrives final : public Backend {
 public:
  struct Speed {
    int fd = -1;
    std::uint64_t ns_per_kib = 0;
    int error = 0;
    std::uint64_t free_at_ns = 0;
    std::uint64_t n_reads = 0;
  };
  std::vector<Speed> drives;

  const char* name() const noexcept override { return "simulated"; }
  std::size_t in_flight() const noexcept override { return running_.size(); }
  std::size_t capacity() const noexcept override { return 64; }
  std::size_t submit(std::span<const ReadOp> ops) override {
    for (const ReadOp& op : ops) {
      Speed& drive =
          *std::find_if(drives.begin(), drives.end(), [&](const Speed& d) { return d.fd == op.fd; });
      drive.free_at_ns = std::max(drive.free_at_ns, g_now_ns) + drive.ns_per_kib * op.length / 1024;
      ++drive.n_reads;
      std::int64_t result = -drive.error;
      if (drive.error == 0) result = pread(op.fd, op.destination, op.length, static_cast<off_t>(op.offset));
      running_.push_back({drive.free_at_ns, {op.tag, result}});
    }
    return ops.size();
  }
  std::size_t wait(std::span<Completion> out, std::size_t min_count) override {
    std::stable_sort(running_.begin(), running_.end(),
                     [](const Running& a, const Running& b) { return a.ends_ns < b.ends_ns; });
    std::size_t n = 0;
    while (n < out.size() && !running_.empty() && (n < min_count || running_.front().ends_ns <= g_now_ns)) {
      g_now_ns = std::max(g_now_ns, running_.front().ends_ns);
      out[n++] = running_.front().completion;
      running_.pop_front();
    }
    return n;
  }

 private:
  struct Running {
    std::uint64_t ends_ns = 0;
    Completion completion;
  };
  std::deque<Running> running_;
};

constexpr std::uint64_t k_read_bytes = 64 * 1024;
constexpr std::size_t k_n_reads = 64;
constexpr std::size_t k_file_bytes = k_n_reads * k_read_bytes + 123;

class TwoCopies : public ::testing::Test {
 protected:
  void SetUp() override {
    bytes_ = test::write_random_file(folder_ / "first", k_file_bytes);
    test::write_random_file(folder_ / "second", k_file_bytes);
    first_ = File::open((folder_ / "first").string(), false);
    second_ = File::open((folder_ / "second").string(), false);
    auto backend = std::make_unique<SimulatedDrives>();
    drives_ = backend.get();
    drives_->drives = {{first_->buffered_fd(), 1000}, {second_->buffered_fd(), 1000}};
    queue_ = std::make_unique<ReadQueue>(
        std::move(backend),
        ReadQueue::Options{.piece_bytes = k_read_bytes, .clock = []() noexcept { return ++g_now_ns; }});
  }
  /// Reads the file once in bursts of 16 requests, from its very end to its beginning, and checks the bytes.
  void read_all(Priority priority = Priority::demand, int expected_error = 0) {
    for (std::size_t at = k_n_reads; at > 0; at -= 16) {
      std::vector<ReadRequest> requests;
      for (std::size_t i = at - 16; i < at; ++i) {
        requests.push_back({first_.get(), i * k_read_bytes, k_read_bytes, memory_.data() + i * k_read_bytes,
                            i, priority, second_.get()});
      }
      queue_->submit(requests);
      std::vector<ReadResult> results(16);
      ASSERT_EQ(queue_->wait(results, 16), 16u);
      for (const ReadResult& result : results) EXPECT_EQ(result.error, expected_error);
    }
    if (expected_error == 0) {
      EXPECT_EQ(std::memcmp(memory_.data(), bytes_.data(), k_n_reads * k_read_bytes), 0);
    }
  }
  std::uint64_t n_reads(std::size_t drive) const { return drives_->drives[drive].n_reads; }

  test::TempDir folder_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<File> first_, second_;
  platform::MappedRegion memory_ = platform::MappedRegion::allocate(k_file_bytes, false);
  SimulatedDrives* drives_ = nullptr;
  std::unique_ptr<ReadQueue> queue_;
};

TEST_F(TwoCopies, EqualDrivesShareTheReads) {
  const std::uint64_t start = g_now_ns;
  for (int i = 0; i < 4; ++i) read_all(i % 2 == 0 ? Priority::demand : Priority::speculative);
  EXPECT_NEAR(static_cast<double>(n_reads(0)), 128, 16);
  EXPECT_EQ(n_reads(0) + n_reads(1), 4 * k_n_reads);
  // One drive alone takes 256 x 64 us.
  EXPECT_LT(g_now_ns - start, 9'500'000u);
}

TEST_F(TwoCopies, ASlowDriveGetsTheShareOfItsRate) {
  drives_->drives[1].ns_per_kib = 7000;
  for (int i = 0; i < 2; ++i) read_all();  // To learn the rates.
  const std::uint64_t before = n_reads(1);
  for (int i = 0; i < 8; ++i) read_all();
  // An eighth at best, in bursts of 16 two.
  EXPECT_NEAR(static_cast<double>(n_reads(1) - before) / (8 * k_n_reads), 0.125, 0.07);
}

TEST_F(TwoCopies, AVerySlowDriveIsHardlyUsedUntilItIsFastAgain) {
  drives_->drives[0].ns_per_kib = 1'000'000;
  read_all();
  const std::uint64_t before = n_reads(0);
  for (int i = 0; i < 60; ++i) read_all();
  EXPECT_EQ(n_reads(0), before) << "a burst on the other takes a sixtieth of one read here";
  drives_->drives[0].ns_per_kib = 100;
  const std::uint64_t n_passes = 2 * k_max_passed_over / k_n_reads;
  for (std::uint64_t i = 0; i < n_passes; ++i) read_all();
  EXPECT_GT(n_reads(0), before) << "it must be tried again after " << k_max_passed_over;
}

TEST_F(TwoCopies, WhatOneDriveCannotReadComesFromTheOther) {
  for (const std::size_t bad : {0u, 1u}) {
    SetUp();
    drives_->drives[bad].error = EIO;
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 8; ++i) read_all();
    const std::string warnings = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(warnings, HasSubstr(std::string(bad == 0 ? "first" : "second") + ": a read at offset"));
    EXPECT_THAT(warnings, HasSubstr("is left alone"));
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 2) << warnings;
    EXPECT_GE(n_reads(bad), 16u);
    EXPECT_LE(n_reads(bad), 16u + 64u) << "it failed often enough to be left alone";
    const std::vector<DriveStatistics> drives = queue_->drives();
    ASSERT_EQ(drives.size(), 2u);
    EXPECT_EQ(drives[bad].n_failed, n_reads(bad));
    EXPECT_EQ(drives[bad].read_bytes, 0u);
    EXPECT_EQ(drives[1 - bad].read_bytes, 8 * k_n_reads * k_read_bytes);
    EXPECT_EQ(drives[1 - bad].n_failed, 0u);
  }
}

TEST_F(TwoCopies, WhatBothCannotReadIsAnError) {
  drives_->drives[0].error = drives_->drives[1].error = EIO;
  read_all(Priority::demand, EIO);
  EXPECT_EQ(n_reads(0) + n_reads(1), 2 * k_n_reads) << "once from each";
}

TEST_F(TwoCopies, ACopyThatWasTruncatedIsReadFromTheOther) {
  std::filesystem::resize_file(folder_ / "first", 10 * k_read_bytes + 5);
  read_all();
  EXPECT_GT(queue_->drives()[0].n_failed, 0u);
}

}  // namespace
}  // namespace sluice::storage
