#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/function_ref.hpp"
#include "base/worker_threads.hpp"

namespace sluice::base {

/// A fixed set of workers that share out the chunks of one loop at a time.
///
/// Every thread begins with a run of neighbouring chunks of its own and takes from the others' when it is
/// done: neighbouring chunks are neighbouring memory, which hardware prefetchers follow and a chunk of the
/// kernels asks for ahead, and still a worker that loses its core delays only the chunk it holds. Workers
/// spin for some microseconds after a loop, then sleep in the kernel: the next loop of a decode step usually
/// follows at once, an idle process uses no CPU. Thread-compatible: one caller at a time.
class ThreadPool {
 public:
  /// `n_threads` counts the caller, so 1 starts no worker. Requires 1 <= n_threads <= k_max_threads. When the
  /// system refuses a thread, the pool works with those it has and warns. With null for `start_thread` there
  /// are no workers and the caller does everything: for users that only ask what n_threads() would need.
  explicit ThreadPool(int n_threads, StartThread start_thread = pthread_create);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static constexpr int k_max_threads = 256;

  /// Those that could be started, the caller included.
  int n_threads() const noexcept { return n_threads_; }

  /// Calls task(chunk, thread) once for every chunk in [0, n_chunks), thread in [0, n_threads). The caller
  /// works too; returns when all chunks are done. The task must not throw and must not call run() of the same
  /// pool.
  void run(std::size_t n_chunks, FunctionRef<void(std::size_t chunk, int thread)> task) noexcept;

 private:
  using Task = FunctionRef<void(std::size_t, int)>;
  void worker(int thread) noexcept;
  void work_on(int thread) noexcept;

  int n_threads_;
  // The current loop: written by run() before it hands out chunks, read by threads that took one.
  const Task* task_ = nullptr;
  /// One per thread: its neighbouring chunks. Low 32 bits the next one, high 32 bits their end.
  struct alignas(64) Run {
    std::atomic<std::uint64_t> next_and_end{0};
  };
  std::vector<Run> runs_;
  alignas(64) std::atomic<std::uint64_t> n_done_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> n_sleeping_{0};
  std::atomic<bool> stop_{false};
  WorkerThreads workers_;
};

}  // namespace sluice::base
