// Goal: every chunk of every loop runs exactly once, whatever the timing. Method: many short loops of all
// sizes.
#include "base/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace sluice::base {
namespace {

TEST(ThreadPool, RunsEveryChunkOnce) {
  for (int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    for (std::size_t n_chunks : {0u, 1u, 2u, 7u, 64u, 1000u}) {
      std::vector<std::atomic<int>> counts(n_chunks);
      pool.run(n_chunks, [&](std::size_t chunk, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, n_threads);
        counts[chunk].fetch_add(1);
      });
      for (auto& count : counts) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, KeepsLoopsApartWhenTheyFollowAtOnce) {
  ThreadPool pool(4);
  std::uint64_t total = 0;
  for (int loop = 0; loop < 20'000; ++loop) {
    std::uint64_t values[5] = {};
    pool.run(5, [&](std::size_t chunk, int) { values[chunk] += chunk + 1; });
    for (std::uint64_t value : values) total += value;
  }
  EXPECT_EQ(total, 20'000u * 15u);
}

TEST(ThreadPool, KeepsLoopsOfDifferentSizesApart) {
  // A worker that is late for a short loop must not take a chunk of the longer one that follows by mistake.
  ThreadPool pool(4);
  std::uint64_t total = 0, expected = 0;
  for (std::size_t loop = 0; loop < 50'000; ++loop) {
    const std::size_t n_chunks = 2 + loop * 7 % 23;
    std::uint64_t values[32] = {};
    pool.run(n_chunks, [&](std::size_t chunk, int) { values[chunk] += chunk + 1; });
    for (std::uint64_t value : values) total += value;
    expected += n_chunks * (n_chunks + 1) / 2;
  }
  EXPECT_EQ(total, expected);
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    // Long enough for the other worker to have gone to sleep in most rounds; correct either way.
    std::atomic<int> busy{0};
    while (busy.fetch_add(1) < 200'000) {
    }
    std::atomic<std::uint64_t> sum{0};
    pool.run(100, [&](std::size_t chunk, int) { sum.fetch_add(chunk); });
    EXPECT_EQ(sum.load(), 4950u);
  }
}

}  // namespace
}  // namespace sluice::base
