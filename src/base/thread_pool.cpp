#include "base/thread_pool.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <thread>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"

namespace sluice::base {
namespace {

// How long a worker polls before it sleeps. Longer than the gap between two operations of a decode step,
// short against a scheduler quantum, so that a machine with another busy process loses little.
constexpr std::uint64_t k_spin_ns = 20'000;
constexpr std::uint64_t k_chunk_mask = 0xffff'ffffu;
// The kernels' buffers lie in scratch memory, so calls and their locals are all that a stack holds.
constexpr std::size_t k_stack_bytes = 1024 * 1024;

void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr,
          0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr,
          0);
}

}  // namespace

ThreadPool::ThreadPool(int n_threads, StartThread start_thread)
    : n_threads_(n_threads), runs_(static_cast<std::size_t>(std::clamp(n_threads, 1, k_max_threads))) {
  SLUICE_CHECK(n_threads >= 1 && n_threads <= k_max_threads);
  if (start_thread == nullptr) return;
  const auto run = [](void* self, int index) noexcept { static_cast<ThreadPool*>(self)->worker(1 + index); };
  const int error = workers_.start(n_threads - 1, k_stack_bytes, run, this, start_thread);
  if (error == 0) return;
  // Workers look at it only after run() has begun a loop.
  n_threads_ = 1 + workers_.n_threads();
  warn(
      "only {} of {} threads could be started: {}; computing goes on with them. Ask for fewer (--threads), "
      "or raise the limit on processes or on address space",
      n_threads_, n_threads, std::strerror(error));
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  futex_wake_all(generation_);
  workers_.join();
}

void ThreadPool::run(std::size_t n_chunks, FunctionRef<void(std::size_t, int)> task) noexcept {
  SLUICE_CHECK(n_chunks < k_chunk_mask);
  if (n_threads_ == 1 || n_chunks <= 1) {
    for (std::size_t chunk = 0; chunk < n_chunks; ++chunk) task(chunk, 0);
    return;
  }
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  task_ = &task;
  n_done_.store(0, std::memory_order_relaxed);
  // Publishes the two above to whoever takes a chunk. The end lies in the same word as the next chunk, so a
  // late worker of an earlier loop can never take one by the new loop's number and the old loop's place.
  const auto n_runs = static_cast<std::size_t>(n_threads_);
  for (std::size_t i = 0; i < n_runs; ++i) {
    runs_[i].next_and_end.store(n_chunks * (i + 1) / n_runs << 32 | n_chunks * i / n_runs,
                                std::memory_order_release);
  }
  generation_.store(generation, std::memory_order_seq_cst);
  if (n_sleeping_.load(std::memory_order_seq_cst) != 0) futex_wake_all(generation_);
  work_on(0);
  // Other threads may still hold a chunk. They are computing, so a short spin usually ends it; if a worker
  // lost its core, yielding lets it have ours.
  std::uint64_t spin_until = 0;
  while (n_done_.load(std::memory_order_acquire) != n_chunks) {
    for (int i = 0; i < 32; ++i) cpu_relax();
    const std::uint64_t now = now_ns();
    if (spin_until == 0) spin_until = now + k_spin_ns;
    if (now > spin_until) std::this_thread::yield();
  }
}

void ThreadPool::work_on(int thread) noexcept {
  // Its own run first, then what is left of the others'.
  for (int i = 0; i < n_threads_; ++i) {
    std::atomic<std::uint64_t>& run = runs_[static_cast<std::size_t>((thread + i) % n_threads_)].next_and_end;
    std::uint64_t seen = run.load(std::memory_order_acquire);
    for (;;) {
      const std::uint64_t chunk = seen & k_chunk_mask;
      if (chunk == seen >> 32) break;
      if (!run.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
      // Taken from the loop that is under way, whichever this thread was woken for: it cannot end before this
      // chunk is counted, so task_ stays valid.
      (*task_)(static_cast<std::size_t>(chunk), thread);
      n_done_.fetch_add(1, std::memory_order_release);
      seen = run.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::worker(int thread) noexcept {
  std::uint32_t seen = 0;
  for (;;) {
    std::uint32_t current = generation_.load(std::memory_order_acquire);
    if (current == seen) {
      const std::uint64_t spin_until = now_ns() + k_spin_ns;
      while ((current = generation_.load(std::memory_order_acquire)) == seen) {
        for (int i = 0; i < 32; ++i) cpu_relax();
        if (now_ns() > spin_until) break;
      }
    }
    while (current == seen) {
      // Announced before the last look at the generation; run() raises the generation before it looks at the
      // count. Whichever comes second sees the other, so no wake-up is lost.
      n_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      futex_wait(generation_, seen);
      n_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
      current = generation_.load(std::memory_order_acquire);
    }
    if (stop_.load()) return;
    seen = current;
    work_on(thread);
  }
}

}  // namespace sluice::base
