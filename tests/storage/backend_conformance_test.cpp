// Goal: through every backend, and through every kind of fault, a queue delivers exactly the bytes of the
// file. Method: one suite over all backends and fault plans; the file's contents are known, so any misplaced,
// missing or stale byte shows.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <tuple>

#include "base/error.hpp"
#include "platform/memory.hpp"
#include "storage/random_file.hpp"
#include "storage/read_queue.hpp"
#include "support/resource_limit.hpp"
#include "support/temp_dir.hpp"

namespace sluice::storage {
namespace {

enum class Kind { uring, pread };

struct Variant {
  std::string name;
  Kind kind = Kind::pread;
  std::optional<FaultPlan> faults;
};

std::vector<Variant> all_variants() {
  std::vector<Variant> variants;
  for (const Kind kind : {Kind::uring, Kind::pread}) {
    const std::string base = kind == Kind::uring ? "Uring" : "Pread";
    const auto add = [&](const char* name, const FaultPlan& plan) {
      variants.push_back({base + name, kind, plan});
    };
    variants.push_back({base, kind, std::nullopt});
    add("NoFault", {});
    add("Short", {.seed = 2, .short_read_rate = 0.5});
    add("ShortBlocks", {.seed = 3, .short_read_rate = 0.7, .granularity_bytes = 4096});
    add("ShortInsideBlocks", {.seed = 7, .short_read_rate = 0.5, .granularity_bytes = 100});
    add("Interrupted", {.seed = 4, .eintr_rate = 0.3, .eagain_rate = 0.2});
    add("LateAndReordered", {.seed = 5, .delay_rate = 0.6, .delay_polls = 4, .reorder = true});
    add("Full", {.seed = 6, .full_rate = 0.8});
    for (std::uint64_t seed = 10; seed < 14; ++seed) {
      FaultPlan plan{.seed = seed,
                     .short_read_rate = 0.3,
                     .eintr_rate = 0.2,
                     .eagain_rate = 0.1,
                     .delay_rate = 0.3,
                     .delay_polls = 2,
                     .reorder = true,
                     .full_rate = 0.3};
      add(("Everything" + std::to_string(seed)).c_str(), plan);
    }
  }
  return variants;
}

std::unique_ptr<Backend> make_plain(Kind kind, std::size_t depth, std::string* reason) {
  return kind == Kind::uring ? make_uring_backend(depth, reason) : make_pread_backend(depth, 3);
}

/// One wanted range with the place its window is read to.
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  platform::MappedRegion buffer;
};

class Conformance : public ::testing::TestWithParam<std::tuple<Variant, bool>> {
 protected:
  static constexpr std::size_t k_file_bytes = 700'001;  // No multiple of any block.

  // One file for all tests: the first direct read of a fresh file waits until its pages are on the drive.
  static void SetUpTestSuite() {
    folder_.emplace();
    contents_ = test::write_random_file(*folder_ / "file", k_file_bytes, 42);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  void SetUp() override {
    file_ = File::open(*folder_ / "file", std::get<1>(GetParam()));
    if (std::get<1>(GetParam()) && !file_->is_direct()) GTEST_SKIP() << file_->why_not_direct();
    std::string reason;
    if (!make_plain(variant().kind, 1, &reason)) GTEST_SKIP() << reason;
  }

  static const Variant& variant() { return std::get<0>(GetParam()); }

  std::unique_ptr<Backend> make_backend(std::size_t depth, std::vector<FaultPlan::Range> failing = {}) {
    std::string reason;
    auto backend = make_plain(variant().kind, depth, &reason);
    EXPECT_NE(backend, nullptr) << reason;
    if (!variant().faults && failing.empty()) return backend;
    FaultPlan plan = variant().faults.value_or(FaultPlan{});
    plan.failing_ranges = std::move(failing);
    return make_fault_backend(std::move(backend), plan);
  }

  std::unique_ptr<ReadQueue> make_queue(std::size_t depth, std::vector<FaultPlan::Range> failing = {}) {
    return std::make_unique<ReadQueue>(make_backend(depth, std::move(failing)),
                                       ReadQueue::Options{.piece_bytes = 16 * 1024, .max_requests = 256});
  }

  Range make_range(std::uint64_t offset, std::uint64_t length) const {
    const Window window = read_window(offset, length, file_->alignment_bytes());
    return {offset, length, platform::MappedRegion::allocate(window.length, false)};
  }

  ReadRequest request(const Range& range, std::uint64_t id, Priority priority = Priority::demand) const {
    return {file_.get(), range.offset, range.length, range.buffer.data(), id, priority};
  }

  void expect_contents(const Range& range) const {
    const std::byte* const bytes = range.buffer.data() + range.offset % file_->alignment_bytes();
    ASSERT_EQ(std::memcmp(bytes, contents_.data() + range.offset, range.length), 0)
        << range.offset << "+" << range.length;
  }

  /// All results of a queue by id, each reported once.
  static std::map<std::uint64_t, ReadResult> drain(ReadQueue& queue) {
    std::map<std::uint64_t, ReadResult> results;
    ReadResult some[3];
    while (queue.n_pending() != 0) {
      const std::size_t n = queue.wait(some, 1);
      EXPECT_GE(n, 1u);
      for (std::size_t i = 0; i < n; ++i)
        EXPECT_TRUE(results.emplace(some[i].id, some[i]).second) << some[i].id;
    }
    return results;
  }

  std::vector<Range> many_ranges() const {
    std::vector<Range> ranges;
    for (std::uint64_t offset : {0u, 1u, 511u, 512u, 4095u, 4096u, 16'384u, 99'999u, 650'000u}) {
      for (std::uint64_t length : {1u, 512u, 4096u, 4097u, 16'384u, 50'001u}) {
        ranges.push_back(make_range(offset, length));
      }
    }
    for (std::uint64_t tail : {1u, 2u, 97u, 481u, 513u, 4097u, 40'000u}) {
      ranges.push_back(make_range(k_file_bytes - tail, tail));
    }
    ranges.push_back(make_range(0, k_file_bytes));
    return ranges;
  }

  static inline std::optional<test::WorkDir> folder_;
  static inline std::vector<std::byte> contents_;
  std::unique_ptr<File> file_;
};

TEST_P(Conformance, DeliversEveryRangeAtEveryQueueDepth) {
  for (std::size_t depth : {1u, 2u, 7u, 64u}) {
    const auto queue = make_queue(depth);
    const auto ranges = many_ranges();
    std::vector<ReadRequest> requests;
    for (const Range& range : ranges) {
      requests.push_back(
          request(range, requests.size(), requests.size() % 3 ? Priority::demand : Priority::speculative));
    }
    queue->submit(requests);
    EXPECT_LE(queue->backend().in_flight(), depth);
    const auto results = drain(*queue);
    ASSERT_EQ(results.size(), ranges.size());
    std::uint64_t wanted = 0;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(results.at(i).error, 0) << std::strerror(results.at(i).error);
      expect_contents(ranges[i]);
      wanted += ranges[i].length;
    }
    EXPECT_EQ(queue->statistics().n_requests, ranges.size());
    EXPECT_EQ(queue->statistics().requested_bytes, wanted);
    EXPECT_GE(queue->statistics().read_bytes, wanted);
    if (!variant().faults) {
      EXPECT_EQ(queue->statistics().n_retries, 0u);
    }
  }
}

TEST_P(Conformance, DeliversRequestsThatComeWhileOthersFly) {
  const auto queue = make_queue(4);
  const auto ranges = many_ranges();
  std::map<std::uint64_t, ReadResult> results;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const ReadRequest one = request(ranges[i], i, i % 2 ? Priority::demand : Priority::speculative);
    queue->submit({&one, 1});
    if (i % 5 == 0) queue->promote(i);
    ReadResult some[2];
    const std::size_t n = queue->wait(some, i % 7 == 6 ? 1 : 0);
    for (std::size_t k = 0; k < n; ++k) results.emplace(some[k].id, some[k]);
  }
  for (const auto& [id, result] : drain(*queue)) results.emplace(id, result);
  ASSERT_EQ(results.size(), ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(results.at(i).error, 0);
    expect_contents(ranges[i]);
  }
}

TEST_P(Conformance, ReportsFailingRangesAndNothingElse) {
  // Pieces are 16 KiB from the window's begin; the bad block lies in the third one of the first request.
  constexpr std::uint64_t k_bad = 2 * 16'384 + 5000;
  const auto queue = make_queue(8, {{.begin = k_bad, .end = k_bad + 1, .error = EIO}});
  const Range bad = make_range(0, 100'000), good = make_range(100'000, 100'000),
              before = make_range(0, 32'768);
  const ReadRequest requests[] = {request(bad, 1), request(good, 2), request(before, 3)};
  queue->submit(requests);
  auto results = drain(*queue);
  EXPECT_EQ(results.at(1).error, EIO);
  // A short read may have moved the begin of the failing piece towards the bad block, not past it.
  EXPECT_GE(results.at(1).error_offset, 2u * 16'384);
  EXPECT_LE(results.at(1).error_offset, k_bad);
  EXPECT_EQ(results.at(2).error, 0);
  expect_contents(good);
  EXPECT_EQ(results.at(3).error, 0);
  expect_contents(before);
}

TEST_P(Conformance, CancelledRequestsLeaveTheOthersWhole) {
  const auto queue = make_queue(2);
  const auto ranges = many_ranges();
  std::vector<ReadRequest> requests;
  for (const Range& range : ranges) {
    requests.push_back(
        request(range, requests.size(), requests.size() % 2 ? Priority::demand : Priority::speculative));
  }
  queue->submit(requests);
  queue->cancel_speculative();
  const auto results = drain(*queue);
  ASSERT_EQ(results.size(), ranges.size());
  std::size_t n_cancelled = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (results.at(i).error == ECANCELED && i % 2 == 0) {
      ++n_cancelled;
      continue;
    }
    EXPECT_EQ(results.at(i).error, 0);
    expect_contents(ranges[i]);
  }
  EXPECT_GT(n_cancelled, 0u);
}

TEST_P(Conformance, TheDestructorWaitsForReadsInFlight) {
  // The memory stays mapped and is overwritten when the queue is gone: a late write would show in it.
  std::vector<Range> ranges;
  for (std::uint64_t i = 0; i < 16; ++i) ranges.push_back(make_range(i * 40'000, 40'000));
  for (int round = 0; round < 5; ++round) {
    posix_fadvise(file_->buffered_fd(), 0, 0, POSIX_FADV_DONTNEED);  // So that buffered reads take time too.
    auto queue = make_queue(16);
    std::vector<ReadRequest> requests;
    for (const Range& range : ranges) requests.push_back(request(range, requests.size()));
    queue->submit(requests);
    queue.reset();
    constexpr int k_canary = 0x5a;
    for (const Range& range : ranges) std::memset(range.buffer.data(), k_canary, range.buffer.size());
    // Reading the whole file takes longer than what was in flight; both come from the same drive.
    std::vector<std::byte> all(k_file_bytes);
    posix_fadvise(file_->buffered_fd(), 0, 0, POSIX_FADV_DONTNEED);
    file_->read(0, all.data(), all.size());
    for (const Range& range : ranges) {
      const std::span bytes(range.buffer.data(), range.buffer.size());
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{k_canary}), std::ssize(bytes));
    }
  }
}

// Found on io_uring: buffered reads of a thread that ends come back as EFAULT.
TEST_P(Conformance, WorksAfterMovingToAnotherThread) {
  const auto queue = make_queue(8);
  const Range first = make_range(10, 200'000), second = make_range(300'000, 200'000);
  posix_fadvise(file_->buffered_fd(), 0, 0, POSIX_FADV_DONTNEED);  // So that reads are still waiting then.
  std::thread([&] {
    const ReadRequest one = request(first, 1);
    queue->submit({&one, 1});
  }).join();
  const ReadRequest two = request(second, 2);
  queue->submit({&two, 1});
  const auto results = drain(*queue);
  EXPECT_EQ(results.at(1).error, 0);
  EXPECT_EQ(results.at(2).error, 0);
  expect_contents(first);
  expect_contents(second);
}

TEST_P(Conformance, RawBackendKeepsItsBounds) {
  const auto backend = make_backend(3);
  EXPECT_EQ(backend->capacity(), 3u);
  const auto memory = platform::MappedRegion::allocate(8 * 4096, false);
  std::vector<ReadOp> ops;
  const int fd = file_->is_direct() ? file_->direct_fd() : file_->buffered_fd();
  for (std::uint64_t i = 0; i < 8; ++i)
    ops.push_back({fd, i * 4096, 4096, memory.data() + i * 4096, 100 + i});
  std::size_t n_accepted = 0, n_done = 0;
  std::map<std::uint64_t, int> seen;
  while (n_done < ops.size()) {
    n_accepted += backend->submit(std::span(ops).subspan(n_accepted));
    EXPECT_LE(backend->in_flight(), 3u);
    EXPECT_EQ(backend->in_flight(), n_accepted - n_done);
    Completion out[2];
    const std::size_t n = backend->wait(out, 1);
    ASSERT_GE(n, 1u);
    ASSERT_LE(n, 2u);
    for (std::size_t i = 0; i < n; ++i) seen[out[i].tag] += 1;
    n_done += n;
  }
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(seen[100 + i], 1);
  Completion out[1];
  EXPECT_EQ(backend->wait(out, 0), 0u);
}

// Without faults, which may hide what these tests look for.
class PlainBackend : public Conformance {};

TEST_P(PlainBackend, ReportsErrorsAndTheEndOfTheFile) {
  const auto backend = make_backend(4);
  const auto memory = platform::MappedRegion::allocate(3 * 4096, false);
  const int fd = file_->is_direct() ? file_->direct_fd() : file_->buffered_fd();
  const std::uint64_t last = k_file_bytes / 4096 * 4096;
  const ReadOp ops[] = {{-1, 0, 4096, memory.data(), 1},
                        {fd, last, 4096, memory.data() + 4096, 2},
                        {fd, last + 4096, 4096, memory.data() + 8192, 3}};
  ASSERT_EQ(backend->submit(ops), 3u);
  std::map<std::uint64_t, std::int64_t> results;
  while (backend->in_flight() != 0) {
    Completion out[4];
    const std::size_t n = backend->wait(out, 1);
    for (std::size_t i = 0; i < n; ++i) results[out[i].tag] = out[i].result;
  }
  EXPECT_EQ(results.at(1), -EBADF);
  EXPECT_EQ(results.at(2), static_cast<std::int64_t>(k_file_bytes - last));
  EXPECT_EQ(results.at(3), 0);
}

std::string test_name(const ::testing::TestParamInfo<Conformance::ParamType>& test) {
  return std::get<0>(test.param).name + (std::get<1>(test.param) ? "Direct" : "Buffered");
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         ::testing::Combine(::testing::ValuesIn(all_variants()), ::testing::Bool()),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Backends, PlainBackend,
                         ::testing::Combine(::testing::Values(Variant{"Uring", Kind::uring, std::nullopt},
                                                              Variant{"Pread", Kind::pread, std::nullopt}),
                                            ::testing::Bool()),
                         test_name);

TEST(Backends, SayTheirNames) {
  EXPECT_STREQ(make_pread_backend(1, 1)->name(), "pread");
  EXPECT_STREQ(make_fault_backend(make_pread_backend(1, 1), {})->name(), "fault(pread)");
  std::string reason;
  const auto uring = make_uring_backend(4, &reason);
  EXPECT_EQ(uring == nullptr, !reason.empty());
  if (uring) {
    EXPECT_STREQ(uring->name(), "io_uring");
  }
}

int n_startable = 0;

int start_some(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  return n_startable-- > 0 ? pthread_create(thread, attributes, run, argument) : EAGAIN;
}

TEST(Pread, ReadsWithTheThreadsThatStart) {
  test::TempDir folder;
  const auto contents = test::write_random_file(folder / "file", 64 * 4096);
  const auto file = File::open((folder / "file").string(), false);
  const auto memory = platform::MappedRegion::allocate(64 * 4096, false);
  n_startable = 1;
  const auto backend = make_pread_backend(8, 8, start_some);
  for (std::uint64_t i = 0; i < 64; ++i) {
    const ReadOp op = {file->buffered_fd(), i * 4096, 4096, memory.data() + i * 4096, i};
    ASSERT_EQ(backend->submit({&op, 1}), 1u);
    Completion out[1];
    ASSERT_EQ(backend->wait(out, 1), 1u);
    EXPECT_EQ(out[0].result, 4096);
  }
  EXPECT_EQ(std::memcmp(memory.data(), contents.data(), contents.size()), 0);
  n_startable = 0;
  EXPECT_THROW(make_pread_backend(8, 8, start_some), Error);
}

TEST(Uring, NamesTheLimitThatKeepsARingFromBeingMade) {
  std::string reason;
  if (!make_uring_backend(64, &reason)) GTEST_SKIP() << reason;
  {
    const test::ResourceLimit limit(RLIMIT_NOFILE, test::ResourceLimit::descriptors(0));
    EXPECT_EQ(make_uring_backend(64, &reason), nullptr);
  }
  EXPECT_NE(reason.find("file descriptor"), std::string::npos) << reason;
  // Root and kernels that count rings by cgroup take no notice of this limit.
  const test::ResourceLimit limit(RLIMIT_MEMLOCK, 0);
  if (!make_uring_backend(64, &reason)) {
    EXPECT_NE(reason.find("ulimit -l"), std::string::npos) << reason;
  }
}

/// Descriptors of this process that are rings.
std::set<int> ring_descriptors() {
  std::set<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    std::error_code error;
    const auto name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
    if (!error && name == "anon_inode:[io_uring]") found.insert(fd);
  }
  return found;
}

TEST(Uring, ARingThatSomebodyClosedIsAnErrorEachTimeAndCanBeDestroyed) {
  test::TempDir folder;
  test::write_random_file(folder / "file", 64 * 4096);
  const auto file = File::open((folder / "file").string(), false);
  const auto memory = platform::MappedRegion::allocate(64 * 4096, false);
  for (const bool submits_before : {false, true}) {
    const std::set<int> before = ring_descriptors();
    std::string reason;
    auto backend = make_uring_backend(8, &reason);
    if (!backend) GTEST_SKIP() << reason;
    int ring = -1;
    for (const int fd : ring_descriptors()) {
      if (!before.contains(fd)) ring = fd;
    }
    ASSERT_GE(ring, 0);
    auto queue = std::make_unique<ReadQueue>(std::move(backend), ReadQueue::Options{});
    const ReadRequest one{file.get(), 0, 64 * 4096, memory.data(), 1};
    // Two pieces: one is under way when the ring is closed, or none.
    if (submits_before) queue->submit({&one, 1});
    // As a host does that closes everything and opens its own: the number belongs to another file then.
    const int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(dup3(other, ring, O_CLOEXEC), ring);
    close(other);
    const ReadRequest two{file.get(), 0, 64 * 4096, memory.data(), 2};
    const auto use = [&] {
      queue->submit({&two, 1});
      ReadResult results[2];
      while (queue->n_pending() != 0) queue->wait(results, 1);
    };
    for (int i = 0; i < 3; ++i) {
      try {
        use();
        FAIL() << "a closed ring reads";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_NE(std::string(error.what()).find("io_uring"), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(queue->backend().in_flight(), 0u);
    queue.reset();
    EXPECT_EQ(fcntl(ring, F_GETFD), FD_CLOEXEC) << "the host's own file was closed";
    close(ring);
  }
}

TEST(FaultBackend, AFailedBackendThrowsFromThenOn) {
  test::TempDir folder;
  test::write_random_file(folder / "file", 64 * 4096);
  const auto file = File::open((folder / "file").string(), false);
  const auto memory = platform::MappedRegion::allocate(64 * 4096, false);
  const FaultPlan plan{.delay_rate = 0.5, .fails_at_wait = 2};
  ReadQueue queue(make_fault_backend(make_pread_backend(4, 2), plan), {.piece_bytes = 4096});
  const ReadRequest one{file.get(), 0, 64 * 4096, memory.data(), 1};
  queue.submit({&one, 1});
  ReadResult results[1];
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(queue.wait(results, 1), Error);
    EXPECT_THROW(queue.submit({&one, 1}), Error);
  }
  EXPECT_EQ(queue.backend().in_flight(), 0u);
}

TEST(FaultBackend, TheSameSeedGivesTheSameFaults) {
  test::TempDir folder;
  test::write_random_file(folder / "file", 64 * 4096);
  const auto file = File::open((folder / "file").string(), false);
  const auto memory = platform::MappedRegion::allocate(64 * 4096, false);
  const auto run = [&](std::uint64_t seed) {
    FaultPlan plan{.seed = seed, .short_read_rate = 0.4, .eintr_rate = 0.2, .eagain_rate = 0.1};
    const auto backend = make_fault_backend(make_pread_backend(1, 1), plan);
    std::vector<std::int64_t> results;
    for (std::uint64_t i = 0; i < 64; ++i) {
      const ReadOp op = {file->buffered_fd(), i * 4096, 4096, memory.data() + i * 4096, i};
      EXPECT_EQ(backend->submit({&op, 1}), 1u);
      Completion out[1];
      EXPECT_EQ(backend->wait(out, 1), 1u);
      results.push_back(out[0].result);
    }
    return results;
  };
  const auto first = run(7);
  EXPECT_EQ(first, run(7));
  EXPECT_NE(first, run(8));
  EXPECT_GT(std::count_if(first.begin(), first.end(), [](auto r) { return r > 0 && r < 4096; }), 0);
  EXPECT_GT(std::count(first.begin(), first.end(), -EINTR), 0);
  EXPECT_GT(std::count(first.begin(), first.end(), 4096), 0);
}

}  // namespace
}  // namespace sluice::storage
