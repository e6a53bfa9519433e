// Goal: once a queue exists, reading takes no memory: a budget that counts every byte must not be exceeded by
// the reads that serve it. Method: operator new of this program counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "platform/memory.hpp"
#include "storage/random_file.hpp"
#include "storage/read_queue.hpp"
#include "support/temp_dir.hpp"

namespace {
std::atomic<std::uint64_t> n_allocations{0};
}  // namespace

// Not inlined, or GCC takes the pair for mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const data = std::malloc(bytes == 0 ? 1 : bytes)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}

namespace sluice::storage {
namespace {

void expect_no_allocations(std::unique_ptr<Backend> backend) {
  constexpr std::size_t k_requests = 32;
  constexpr std::uint64_t k_length = 50'000;
  test::TempDir folder;
  test::write_random_file(folder / "file", k_requests * k_length);
  const auto file = File::open((folder / "file").string(), true);
  const std::uint64_t room = read_window(k_length - 1, k_length, file->alignment_bytes()).length + 4096;
  const auto memory = platform::MappedRegion::allocate(k_requests * (room + 4096), true);
  ReadQueue queue(std::move(backend), {.piece_bytes = 8192, .max_requests = k_requests});
  std::vector<ReadRequest> requests;
  for (std::uint64_t i = 0; i < k_requests; ++i) {
    requests.push_back({file.get(), i * k_length, k_length, memory.data() + i * ((room + 4095) / 4096 * 4096),
                        i, i % 2 ? Priority::demand : Priority::speculative});
  }
  ReadResult results[k_requests];
  const std::uint64_t before = n_allocations.load();
  for (int round = 0; round < 3; ++round) {
    queue.submit(requests);
    queue.promote(30);
    queue.cancel_speculative();
    std::size_t n = 0;
    while (n < k_requests) n += queue.wait(std::span(results).subspan(n), 1);
  }
  EXPECT_EQ(n_allocations.load(), before);
}

TEST(Allocation, TheCounterCounts) {
  const std::uint64_t before = n_allocations.load();
  const auto data = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(n_allocations.load(), before + 2);
}

TEST(Allocation, ReadingThroughPreadTakesNoMemory) {
  expect_no_allocations(make_pread_backend(8, 2));
}

TEST(Allocation, ReadingThroughUringTakesNoMemory) {
  std::string reason;
  auto backend = make_uring_backend(8, &reason);
  if (!backend) GTEST_SKIP() << reason;
  expect_no_allocations(std::move(backend));
}

TEST(Allocation, ReadingThroughFaultsTakesNoMemory) {
  expect_no_allocations(
      make_fault_backend(make_pread_backend(8, 2),
                         {.short_read_rate = 0.3, .eintr_rate = 0.2, .delay_rate = 0.3, .reorder = true}));
}

}  // namespace
}  // namespace sluice::storage
