// Goal: the probe reads every combination inside the file, whatever the backend does, ends in time, and says
// what failed.
#include "storage/drive_probe.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <set>

#include "sluice/error.hpp"
#include "storage/random_file.hpp"

namespace sluice::storage {
namespace {

constexpr std::size_t k_file_bytes = (6u << 20) + 1234;
constexpr std::uint32_t k_blocks[] = {64u << 10, 1u << 20};
constexpr std::uint32_t k_depths[] = {1, 4};

/// A clock that goes on a little whenever it is read, so that tests do not depend on the machine's speed.
std::uint64_t fake_now_ns() noexcept {
  static std::uint64_t now = 0;
  return now += 50'000;
}

/// Answers at once and remembers what was asked.
class RecordingBackend final : public Backend {
 public:
  const char* name() const noexcept override { return "recording"; }
  std::size_t in_flight() const noexcept override { return pending_.size(); }
  std::size_t capacity() const noexcept override { return 8; }
  std::size_t submit(std::span<const ReadOp> ops) override {
    for (const ReadOp& op : ops) {
      asked.push_back(op);
      pending_.push_back({op.tag, answer ? answer(op) : op.length});
    }
    max_in_flight = std::max(max_in_flight, pending_.size());
    return ops.size();
  }
  std::size_t wait(std::span<Completion> out, std::size_t min_count) override {
    EXPECT_LE(min_count, pending_.size());
    if (out.empty() || pending_.empty()) return 0;
    out[0] = pending_.front();
    pending_.erase(pending_.begin());
    return 1;
  }

  std::vector<ReadOp> asked;
  std::size_t max_in_flight = 0;
  std::function<std::int64_t(const ReadOp&)> answer;

 private:
  std::vector<Completion> pending_;
};

class DriveProbeTest : public testing::Test {
 protected:
  DriveProbeTest() {
    test::write_random_file(dir_ / "f", k_file_bytes);
    file_ = File::open((dir_ / "f").string(), true);
    options_.block_bytes = k_blocks;
    options_.depths = k_depths;
    options_.sequential_block_bytes = 1u << 20;
    options_.sequential_depth = 2;
    options_.seconds = 0.02;
    options_.now_ns = &fake_now_ns;
  }
  std::string failure(Backend& backend, ErrorCode code) {
    try {
      probe_drive(*file_, backend, options_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    ADD_FAILURE() << "nothing failed";
    return {};
  }

  test::WorkDir dir_;
  std::unique_ptr<File> file_;
  ProbeOptions options_;
};

TEST_F(DriveProbeTest, MeasuresEveryCombinationWithEveryBackend) {
  std::string reason;
  auto uring = make_uring_backend(8, &reason);
  const auto pread = make_pread_backend(8, 4);
  for (Backend* backend : {uring.get(), pread.get()}) {
    if (backend == nullptr) continue;
    const DriveProbe result = probe_drive(*file_, *backend, options_);
    ASSERT_EQ(result.random.size(), 4u);
    for (const ProbeRate& rate : result.random) EXPECT_GT(rate.bytes_per_second, 0) << backend->name();
    EXPECT_EQ(result.random[0].block_bytes, k_blocks[0]);
    EXPECT_EQ(result.random[0].depth, 1u);
    EXPECT_GT(result.sequential.bytes_per_second, 0);
    EXPECT_GE(result.read_bytes, 4 * k_blocks[1]);
    EXPECT_EQ(backend->in_flight(), 0u);
  }
}

TEST_F(DriveProbeTest, ReadsAlignedBlocksInsideTheFileAndKeepsTheDepth) {
  RecordingBackend backend;
  const DriveProbe result = probe_drive(*file_, backend, options_);
  ASSERT_EQ(result.random.size(), 4u);
  EXPECT_EQ(backend.max_in_flight, 4u);
  std::uint64_t bytes = 0;
  for (const ReadOp& op : backend.asked) {
    EXPECT_LE(op.offset + op.length, k_file_bytes);
    EXPECT_EQ(op.offset % file_->alignment_bytes(), 0u);
    bytes += op.length;
  }
  // All but what was in flight when each measurement ended: three turns of four combinations, and in order.
  EXPECT_LE(result.read_bytes, bytes);
  EXPECT_GE(result.read_bytes + 13u * 4u * k_blocks[1], bytes);
}

TEST_F(DriveProbeTest, ReadsInOrderFollowOneAnother) {
  RecordingBackend backend;
  options_.block_bytes = {};
  probe_drive(*file_, backend, options_);
  ASSERT_GE(backend.asked.size(), 2u);
  const std::uint64_t n_places = k_file_bytes / options_.sequential_block_bytes;
  for (std::size_t i = 1; i < backend.asked.size(); ++i) {
    const std::uint64_t place = backend.asked[i - 1].offset / options_.sequential_block_bytes;
    ASSERT_EQ(backend.asked[i].offset / options_.sequential_block_bytes, (place + 1) % n_places);
  }
}

TEST_F(DriveProbeTest, GoesRoundTheWholeBufferAndReadsInFlightShareNoPartOfIt) {
  static constexpr std::uint32_t k_block[] = {1u << 20};
  static constexpr std::uint32_t k_depth[] = {4};
  options_.block_bytes = k_block;
  options_.depths = k_depth;
  options_.seconds = 0.1;
  options_.buffer_bytes = 16u << 20;
  RecordingBackend backend;
  probe_drive(*file_, backend, options_);
  std::set<std::byte*> parts;
  for (std::size_t i = 0; i < backend.asked.size(); ++i) {
    parts.insert(backend.asked[i].destination);
    // At most four are in flight, so these have not ended.
    for (std::size_t j = i + 1; j < std::min(i + 4, backend.asked.size()); ++j)
      ASSERT_NE(backend.asked[i].destination, backend.asked[j].destination) << i << " and " << j;
  }
  ASSERT_GE(backend.asked.size(), 32u);
  EXPECT_EQ(parts.size(), 16u);
}

TEST_F(DriveProbeTest, TheSeedDecidesThePlaces) {
  static constexpr std::uint32_t k_block[] = {64u << 10};
  static constexpr std::uint32_t k_depth[] = {8};
  options_.block_bytes = k_block;
  options_.depths = k_depth;
  // How many reads there are depends on the time, but a full queue is always asked for.
  const auto first_offsets = [this](std::uint64_t seed) {
    RecordingBackend backend;
    options_.seed = seed;
    probe_drive(*file_, backend, options_);
    std::vector<std::uint64_t> offsets;
    for (std::size_t i = 0; i < k_depth[0]; ++i) offsets.push_back(backend.asked.at(i).offset);
    return offsets;
  };
  EXPECT_EQ(first_offsets(1), first_offsets(1));
  EXPECT_NE(first_offsets(1), first_offsets(2));
}

TEST_F(DriveProbeTest, CombinationsWithTooMuchInFlightAreLeftOut) {
  RecordingBackend backend;
  constexpr std::uint32_t k_large[] = {4u << 20};
  constexpr std::uint32_t k_deep[] = {8};
  options_.block_bytes = k_large;
  options_.depths = k_deep;
  EXPECT_EQ(probe_drive(*file_, backend, options_).random.size(), 1u);
  static_assert(std::uint64_t{16u << 20} * 8 > k_max_probe_flight_bytes);
  constexpr std::uint32_t k_huge[] = {16u << 20};
  options_.block_bytes = k_huge;
  EXPECT_TRUE(probe_drive(*file_, backend, options_).random.empty());
}

TEST_F(DriveProbeTest, InterruptedAndShortReadsAreNoFailure) {
  FaultPlan plan;
  plan.eintr_rate = 0.2;
  plan.eagain_rate = 0.1;
  plan.short_read_rate = 0.2;
  plan.granularity_bytes = 4096;
  plan.delay_rate = 0.2;
  plan.reorder = true;
  plan.full_rate = 0.3;
  const auto backend = make_fault_backend(std::make_unique<RecordingBackend>(), plan);
  const DriveProbe result = probe_drive(*file_, *backend, options_);
  EXPECT_EQ(result.random.size(), 4u);
  EXPECT_GT(result.read_bytes, 0u);
}

TEST_F(DriveProbeTest, AReadThatFailsIsNamedAndNothingStaysInFlight) {
  RecordingBackend backend;
  backend.answer = [n = 0](const ReadOp& op) mutable -> std::int64_t {
    return ++n < 5 ? std::int64_t{op.length} : -EIO;
  };
  const std::string message = failure(backend, ErrorCode::io);
  EXPECT_NE(message.find("at offset"), std::string::npos) << message;
  EXPECT_NE(message.find(file_->path()), std::string::npos) << message;
  EXPECT_EQ(backend.in_flight(), 0u);
  backend.answer = [](const ReadOp&) -> std::int64_t { return 0; };
  EXPECT_NE(failure(backend, ErrorCode::io).find("ends there"), std::string::npos);
}

TEST_F(DriveProbeTest, EndlessInterruptionsAreGivenUp) {
  RecordingBackend backend;
  backend.answer = [](const ReadOp&) -> std::int64_t { return -EINTR; };
  failure(backend, ErrorCode::io);
}

TEST_F(DriveProbeTest, ADriveTooSlowForTheTimeIsNotWaitedFor) {
  RecordingBackend backend;
  options_.seconds = 200e-6;
  const DriveProbe result = probe_drive(*file_, backend, options_);
  EXPECT_GE(result.random.size(), 1u);
  EXPECT_LT(result.random.size(), 4u);
  EXPECT_EQ(result.sequential.bytes_per_second, 0);
}

TEST_F(DriveProbeTest, TheRateIsBytesOverTime) {
  RecordingBackend backend;
  const DriveProbe result = probe_drive(*file_, backend, options_);
  // With the fake clock one read is answered between two looks at the clock.
  EXPECT_NEAR(result.random[0].bytes_per_second, k_blocks[0] / 50e-6, 1);
  EXPECT_NEAR(result.random[2].bytes_per_second, k_blocks[1] / 50e-6, 1);
}

TEST_F(DriveProbeTest, StopsWhenAsked) {
  RecordingBackend backend;
  std::atomic<bool> cancel{false};
  options_.cancel = &cancel;
  options_.seconds = 600;
  backend.answer = [&](const ReadOp& op) -> std::int64_t {
    cancel.store(true);
    return op.length;
  };
  failure(backend, ErrorCode::cancelled);
  EXPECT_EQ(backend.in_flight(), 0u);
}

}  // namespace
}  // namespace sluice::storage
