#pragma once

#include <pthread.h>

#include <cstddef>
#include <vector>

namespace sluice::base {

/// As pthread_create(): 0 or an errno. Tests pass one that refuses.
using StartThread = int (*)(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                            void* argument);

/// Threads that work for one object until it tells them to end. Their stacks are small, because the default
/// of 8 MiB counts against limits on address space, and all signals are blocked in them: signals belong to
/// the program's own threads.
class WorkerThreads {
 public:
  WorkerThreads() = default;
  ~WorkerThreads() { join(); }
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  /// Starts up to `n_threads` threads that call run(self, index), index from 0 on, and returns 0. When the
  /// system refuses one, no more are started and its errno is returned; those that run go on. To be called
  /// once. `stack_bytes` is raised where thread-local data of loaded libraries needs more.
  int start(int n_threads, std::size_t stack_bytes, void (*run)(void* self, int index) noexcept, void* self,
            StartThread start_thread = pthread_create);
  int n_threads() const noexcept { return static_cast<int>(threads_.size()); }
  /// Waits for their ends. They must have been told before.
  void join() noexcept;

 private:
  struct Entry {
    void (*run)(void*, int) noexcept;
    void* self;
    int index;
  };
  static void* enter(void* entry) noexcept;

  std::vector<pthread_t> threads_;
  std::vector<Entry> entries_;  ///< One per thread, never moved.
};

}  // namespace sluice::base
