// Goal: what the queue asks of a backend, in which order, and what it makes of every kind of answer. Method:
// a scripted backend that records each read and completes it as the test says.
#include "storage/read_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>

#include "platform/memory.hpp"
#include "storage/random_file.hpp"
#include "support/temp_dir.hpp"

namespace sluice::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Records reads; completes them only when the test says so, or at once with `automatic`.
class ScriptedBackend final : public Backend {
 public:
  explicit ScriptedBackend(std::size_t capacity) : capacity_(capacity) {}
  const char* name() const noexcept override { return "scripted"; }
  std::size_t in_flight() const noexcept override { return running.size() + done.size(); }
  std::size_t capacity() const noexcept override { return capacity_; }
  std::size_t submit(std::span<const ReadOp> ops) override {
    std::size_t n = std::min(ops.size(), capacity_ - in_flight());
    if (accept_at_most_one) n = std::min<std::size_t>(n, 1);
    for (const ReadOp& op : ops.first(n)) {
      offsets.push_back(op.offset);
      lengths.push_back(op.length);
      running.push_back(op);
    }
    return n;
  }
  std::size_t wait(std::span<Completion> out, std::size_t min_count) override {
    while (done.size() < min_count || (complete_all && !running.empty())) finish(running.front().offset);
    std::size_t n = 0;
    for (; n < out.size() && !done.empty(); ++n) {
      out[n] = done.front();
      done.pop_front();
    }
    return n;
  }
  /// Ends the read at `offset` with `result`, or as asked in full.
  void finish(std::uint64_t offset, std::optional<std::int64_t> result = {}) {
    for (auto op = running.begin(); op != running.end(); ++op) {
      if (op->offset != offset) continue;
      done.push_back({op->tag, result.value_or(op->length)});
      running.erase(op);
      return;
    }
    ADD_FAILURE() << "no read at " << offset;
  }

  std::vector<std::uint64_t> offsets;
  std::vector<std::uint32_t> lengths;
  std::deque<ReadOp> running;
  std::deque<Completion> done;
  bool accept_at_most_one = false;
  bool complete_all = false;

 private:
  std::size_t capacity_;
};

constexpr std::uint64_t k_piece = 8192;
constexpr std::size_t k_file_bytes = 100 * k_piece + 100;

class ReadQueueTest : public ::testing::Test {
 protected:
  void start(std::size_t capacity, std::size_t max_requests = 16) {
    test::write_random_file(folder_ / "file", k_file_bytes);
    file_ = File::open((folder_ / "file").string(), false);  // Buffered: alignment 4096 on every system.
    ASSERT_EQ(file_->alignment_bytes(), 4096u);
    auto backend = std::make_unique<ScriptedBackend>(capacity);
    backend_ = backend.get();
    queue_ = std::make_unique<ReadQueue>(
        std::move(backend), ReadQueue::Options{.piece_bytes = k_piece, .max_requests = max_requests});
  }
  /// `n` pieces from piece `first` on.
  ReadRequest request(std::uint64_t id, std::uint64_t first, std::uint64_t n,
                      Priority priority = Priority::demand) {
    return {file_.get(), first * k_piece, n * k_piece, memory_.data(), id, priority};
  }
  void submit(std::vector<ReadRequest> requests) { queue_->submit(requests); }
  std::vector<ReadResult> poll() {
    std::vector<ReadResult> results(32);
    results.resize(queue_->wait(results, 0));
    return results;
  }
  std::vector<std::uint64_t> poll_ids() {
    std::vector<std::uint64_t> ids;
    for (const ReadResult& result : poll()) {
      EXPECT_EQ(result.error, 0);
      ids.push_back(result.id);
    }
    return ids;
  }
  std::vector<std::uint64_t> started() {
    std::vector<std::uint64_t> pieces;
    for (std::uint64_t offset : backend_->offsets) pieces.push_back(offset / k_piece);
    backend_->offsets.clear();
    return pieces;
  }

  test::TempDir folder_;
  std::unique_ptr<File> file_;
  platform::MappedRegion memory_ = platform::MappedRegion::allocate(k_file_bytes, false);
  ScriptedBackend* backend_ = nullptr;
  std::unique_ptr<ReadQueue> queue_;
};

TEST(ReadWindow, EnclosesTheRangeAtTheAlignment) {
  const auto check = [](std::uint64_t offset, std::uint64_t length, std::uint32_t alignment,
                        Window expected) {
    const Window window = read_window(offset, length, alignment);
    EXPECT_EQ(window.offset, expected.offset) << offset << "+" << length;
    EXPECT_EQ(window.length, expected.length) << offset << "+" << length;
  };
  check(0, 1, 4096, {0, 4096});
  check(0, 4096, 4096, {0, 4096});
  check(4095, 2, 4096, {0, 8192});
  check(4096, 4097, 4096, {4096, 8192});
  check(1000, 24, 512, {512, 512});
  check(1000, 25, 512, {512, 1024});
  check(5000, 0, 4096, {4096, 0});
}

TEST_F(ReadQueueTest, SplitsAWindowIntoAlignedPieces) {
  start(8);
  submit({{file_.get(), 5000, 2 * k_piece, memory_.data(), 7, Priority::demand}});
  EXPECT_THAT(backend_->offsets, ElementsAre(4096, 4096 + k_piece, 4096 + 2 * k_piece));
  EXPECT_THAT(backend_->lengths, ElementsAre(k_piece, k_piece, 4096));
  EXPECT_EQ(backend_->running[1].destination, memory_.data() + k_piece);
  EXPECT_EQ(backend_->running[1].fd, file_->buffered_fd());
  EXPECT_EQ(queue_->n_pending(), 1u);
  backend_->finish(4096 + k_piece);
  EXPECT_THAT(poll(), IsEmpty());
  backend_->finish(4096);
  backend_->finish(4096 + 2 * k_piece);
  EXPECT_THAT(poll_ids(), ElementsAre(7));
  EXPECT_EQ(queue_->n_pending(), 0u);
}

TEST_F(ReadQueueTest, DemandOvertakesSpeculationThatHasNotStarted) {
  start(2);
  submit({request(1, 0, 4, Priority::speculative)});
  submit({request(2, 10, 2, Priority::speculative), request(3, 20, 3)});
  EXPECT_THAT(started(), ElementsAre(0, 1));
  backend_->complete_all = true;
  std::vector<ReadResult> results(3);
  ASSERT_EQ(queue_->wait(results, 3), 3u);
  EXPECT_THAT(started(), ElementsAre(20, 21, 22, 2, 3, 10, 11));
  EXPECT_EQ(results[0].id, 3u);
}

TEST_F(ReadQueueTest, PromotedRequestsAreReadAsDemand) {
  start(1);
  submit({request(1, 0, 1), request(2, 10, 1, Priority::speculative),
          request(3, 20, 2, Priority::speculative), request(4, 30, 1)});
  queue_->promote(3);
  queue_->promote(3);    // Again: nothing more to raise.
  queue_->promote(1);    // Is demand already.
  queue_->promote(999);  // Unknown.
  backend_->complete_all = true;
  std::vector<ReadResult> results(4);
  ASSERT_EQ(queue_->wait(results, 4), 4u);
  EXPECT_THAT(started(), ElementsAre(0, 30, 20, 21, 10));
}

TEST_F(ReadQueueTest, PromotionRaisesTheRestOfARequestThatHasBegun) {
  start(2);
  submit({request(1, 0, 5, Priority::speculative)});
  backend_->accept_at_most_one = true;
  backend_->finish(0, 4096);  // To be continued, speculatively.
  EXPECT_THAT(poll(), IsEmpty());
  submit({request(2, 10, 2, Priority::speculative)});
  queue_->promote(1);
  backend_->accept_at_most_one = false;
  backend_->complete_all = true;
  std::vector<ReadResult> results(2);
  ASSERT_EQ(queue_->wait(results, 2), 2u);
  EXPECT_EQ(results[0].id, 1u);
  EXPECT_EQ(results[1].id, 2u);
}

TEST_F(ReadQueueTest, CancelDropsOnlySpeculationThatHasNotStarted) {
  start(2);
  submit({request(1, 0, 3, Priority::speculative), request(2, 10, 1, Priority::speculative),
          request(3, 20, 1, Priority::speculative)});
  queue_->promote(3);
  queue_->cancel_speculative();
  queue_->cancel_speculative();
  const auto cancelled = poll();
  ASSERT_EQ(cancelled.size(), 1u);
  EXPECT_EQ(cancelled[0].id, 2u);
  EXPECT_EQ(cancelled[0].error, ECANCELED);
  EXPECT_EQ(queue_->n_pending(), 2u);
  backend_->complete_all = true;
  std::vector<ReadResult> results(2);
  ASSERT_EQ(queue_->wait(results, 2), 2u);
  EXPECT_EQ(results[0].error, 0);
  EXPECT_EQ(results[1].error, 0);
  EXPECT_THAT(started(), ElementsAre(0, 1, 20, 2));
}

TEST_F(ReadQueueTest, AFailedPieceIsReportedOnlyWhenNoReadWritesToTheBuffer) {
  start(3);
  submit({request(1, 0, 6)});
  backend_->finish(1 * k_piece, -EIO);
  EXPECT_THAT(poll(), IsEmpty());
  backend_->finish(2 * k_piece);
  EXPECT_THAT(poll(), IsEmpty());
  EXPECT_THAT(started(), ElementsAre(0, 1, 2)) << "the rest of a failed request must not be read";
  backend_->finish(0);
  const auto results = poll();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].error, EIO);
  EXPECT_EQ(results[0].error_offset, 1 * k_piece);
  EXPECT_THAT(poll(), IsEmpty()) << "a result is reported once";
}

TEST_F(ReadQueueTest, OfSeveralFailuresTheLowestOffsetIsReported) {
  start(4);
  submit({request(1, 0, 4), request(2, 10, 1)});
  backend_->finish(3 * k_piece, -EIO);
  backend_->finish(1 * k_piece, -ENXIO);
  backend_->finish(2 * k_piece, -EIO);
  backend_->finish(0, 4096);  // Short, but not worth continuing.
  const auto failed = poll();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].id, 1u);
  EXPECT_EQ(failed[0].error, ENXIO);
  EXPECT_EQ(failed[0].error_offset, 1 * k_piece);
  backend_->finish(10 * k_piece);
  EXPECT_THAT(poll_ids(), ElementsAre(2)) << "another request is not touched";
}

TEST_F(ReadQueueTest, ShortReadsAreContinuedWhereTheyEnded) {
  start(1);
  submit({request(1, 3, 1)});
  backend_->finish(3 * k_piece, 5000);
  EXPECT_THAT(poll(), IsEmpty());
  ASSERT_EQ(backend_->running.size(), 1u);
  EXPECT_EQ(backend_->running[0].offset, 3 * k_piece + 5000);
  EXPECT_EQ(backend_->running[0].length, k_piece - 5000);
  EXPECT_EQ(backend_->running[0].destination, memory_.data() + 5000);
  backend_->finish(3 * k_piece + 5000);
  EXPECT_THAT(poll_ids(), ElementsAre(1));
  EXPECT_EQ(queue_->statistics().n_retries, 1u);
  EXPECT_EQ(queue_->statistics().n_reads, 2u);
  EXPECT_EQ(queue_->statistics().read_bytes, k_piece);
}

TEST_F(ReadQueueTest, ShortReadsThatCoverWhatIsWantedAreEnough) {
  start(1);
  submit({{file_.get(), 100, 200, memory_.data(), 1, Priority::demand}});
  backend_->finish(0, 300);
  EXPECT_THAT(poll_ids(), ElementsAre(1));
}

TEST_F(ReadQueueTest, InterruptedReadsAreRepeatedAHundredTimes) {
  start(1);
  for (const int error : {EINTR, EAGAIN, ECANCELED, EFAULT}) {
    submit({request(1, 5, 1)});
    for (int i = 0; i < 100; ++i) {
      backend_->finish(5 * k_piece, -error);
      ASSERT_THAT(poll(), IsEmpty());
    }
    backend_->finish(5 * k_piece, -error);
    const auto results = poll();
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].error, error);
    EXPECT_EQ(results[0].error_offset, 5 * k_piece);
  }
  EXPECT_EQ(queue_->statistics().n_retries, 400u);
  EXPECT_EQ(queue_->statistics().n_reads, 404u);
}

TEST_F(ReadQueueTest, AFileThatEndsEarlyIsAnError) {
  start(2);
  submit({request(1, 0, 2)});
  backend_->finish(0);
  backend_->finish(k_piece, 4096);
  EXPECT_THAT(poll(), IsEmpty());
  backend_->finish(k_piece + 4096, 0);
  const auto results = poll();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].error, ENODATA);
  EXPECT_EQ(results[0].error_offset, k_piece + 4096);
}

TEST_F(ReadQueueTest, RangesBeyondTheFileFailWithoutARead) {
  start(2);
  submit({{file_.get(), k_file_bytes - 1, 2, memory_.data(), 1, Priority::demand},
          {file_.get(), UINT64_MAX, 2, memory_.data(), 2, Priority::demand}});
  const auto results = poll();
  ASSERT_EQ(results.size(), 2u);
  for (const ReadResult& result : results) {
    EXPECT_EQ(result.error, ENODATA);
    EXPECT_EQ(result.error_offset, k_file_bytes);
  }
  EXPECT_THAT(started(), IsEmpty());
}

TEST_F(ReadQueueTest, AnEmptyRangeIsDoneAtOnce) {
  start(2);
  submit({{file_.get(), 10, 0, nullptr, 1, Priority::demand}});
  EXPECT_THAT(poll_ids(), ElementsAre(1));
  EXPECT_THAT(started(), IsEmpty());
}

TEST_F(ReadQueueTest, ReadsThatTheBackendDoesNotTakeKeepTheirOrder) {
  start(4);
  backend_->accept_at_most_one = true;
  submit({request(1, 0, 3), request(2, 10, 1, Priority::speculative), request(3, 20, 1)});
  EXPECT_THAT(started(), ElementsAre(0));
  EXPECT_THAT(poll(), IsEmpty());
  EXPECT_THAT(poll(), IsEmpty());
  EXPECT_THAT(poll(), IsEmpty());
  EXPECT_THAT(started(), ElementsAre(1, 2, 20));
  backend_->complete_all = true;
  std::vector<ReadResult> results(3);
  ASSERT_EQ(queue_->wait(results, 3), 3u);
  EXPECT_EQ(queue_->statistics().n_reads, 5u);
}

TEST_F(ReadQueueTest, TheRequestPoolIsReusable) {
  start(2, 4);
  backend_->complete_all = true;
  for (std::uint64_t round = 0; round < 50; ++round) {
    submit({request(4 * round, 0, 2), request(4 * round + 1, 5, 1), request(4 * round + 2, 7, 1),
            request(4 * round + 3, 9, 3)});
    EXPECT_EQ(queue_->n_pending(), 4u);
    std::vector<ReadResult> results(3);
    std::size_t n = 0;
    while (n < 4) n += queue_->wait(results, 1);
    EXPECT_EQ(n, 4u);
  }
  EXPECT_EQ(queue_->statistics().n_requests, 200u);
  EXPECT_EQ(queue_->statistics().requested_bytes, 200u * 7 / 4 * k_piece);
  EXPECT_EQ(queue_->statistics().read_bytes, queue_->statistics().requested_bytes);
}

TEST_F(ReadQueueTest, BusyTimeCoversReadsAndWaitingTime) {
  start(2);
  EXPECT_EQ(queue_->statistics().busy_ns, 0u);
  submit({request(1, 0, 1)});
  std::vector<ReadResult> results(1);
  ASSERT_EQ(queue_->wait(results, 1), 1u);
  const std::uint64_t busy = queue_->statistics().busy_ns;
  EXPECT_GT(busy, 0u);
  EXPECT_LE(queue_->statistics().wait_ns, busy);
  EXPECT_THAT(poll(), IsEmpty());
  EXPECT_EQ(queue_->statistics().busy_ns, busy) << "an idle queue is not busy";
}

}  // namespace
}  // namespace sluice::storage
