// Goal: every chunk of every loop runs exactly once, whatever the timing and however many threads the system
// grants. Method: many short loops of all sizes; a start function that refuses.
#include "base/thread_pool.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"

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

/// Whether the kernel says so of a thread of this process.
bool is_asleep(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.compare(name_end, 3, ") S") == 0;
}

/// Gives up the core until `done()` or for too long; false then.
template <typename Done>
bool wait_until(Done done) {
  constexpr std::uint64_t k_too_long_ns = 60'000'000'000;
  const std::uint64_t end = now_ns() + k_too_long_ns;
  while (!done()) {
    if (now_ns() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// A loop of two chunks that ends only when both threads have run one, or after too long. Returns the id of
/// the worker, 0 when it ran nothing.
pid_t run_on_both(ThreadPool& pool) {
  std::atomic<pid_t> worker{0};
  pool.run(2, [&](std::size_t, int thread) {
    if (thread == 1) worker.store(gettid());
    wait_until([&] { return worker.load() != 0; });
  });
  return worker.load();
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(2);
  for (int round = 0; round < 50; ++round) {
    const pid_t worker = run_on_both(pool);
    ASSERT_NE(worker, 0) << "round " << round;
    ASSERT_TRUE(wait_until([&] { return is_asleep(worker); }));
  }
}

TEST(ThreadPool, WorkersBlockSignalsAndHaveSmallStacks) {
  ThreadPool pool(2);
  std::atomic<bool> seen{false};
  pool.run(2, [&](std::size_t, int thread) {
    if (thread == 1) {
      sigset_t blocked;
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
      EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
      EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
      pthread_attr_t attributes;
      std::size_t stack_bytes = 0;
      pthread_getattr_np(pthread_self(), &attributes);
      pthread_attr_getstacksize(&attributes, &stack_bytes);
      pthread_attr_destroy(&attributes);
      EXPECT_LE(stack_bytes, std::size_t{2} << 20);
      seen.store(true);
    }
    wait_until([&] { return seen.load(); });
  });
  EXPECT_TRUE(seen.load());
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGINT), 0);
}

int n_startable = 0;

int start_some(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  return n_startable-- > 0 ? pthread_create(thread, attributes, run, argument) : EAGAIN;
}

TEST(ThreadPool, GoesOnWithTheThreadsThatStart) {
  for (int n_workers : {0, 1, 3}) {
    n_startable = n_workers;
    ThreadPool pool(8, start_some);
    EXPECT_EQ(pool.n_threads(), 1 + n_workers);
    for (std::size_t n_chunks : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<std::atomic<int>> counts(n_chunks);
      pool.run(n_chunks, [&](std::size_t chunk, int thread) {
        ASSERT_LE(thread, n_workers);
        counts[chunk].fetch_add(1);
      });
      for (auto& count : counts) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, WithoutWorkersTheCallerDoesEverything) {
  ThreadPool pool(64, nullptr);
  EXPECT_EQ(pool.n_threads(), 64);
  std::size_t n_done = 0;
  pool.run(1000, [&](std::size_t, int thread) { n_done += thread == 0 ? 1 : 0; });
  EXPECT_EQ(n_done, 1000u);
}

}  // namespace
}  // namespace sluice::base
