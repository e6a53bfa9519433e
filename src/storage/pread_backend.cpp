#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/worker_threads.hpp"
#include "storage/backend.hpp"

namespace sluice::storage {
namespace {

constexpr std::size_t k_max_queue_depth = 4096;
// A reader calls pread and little else; the default stack of 8 MiB would count against address-space limits.
constexpr std::size_t k_stack_bytes = 128 * 1024;

/// First in, first out, in storage that is made once.
template <typename T>
class Fifo {
 public:
  explicit Fifo(std::size_t capacity) : items_(capacity) {}
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  void push(const T& item) {
    SLUICE_CHECK(size_ < items_.size());
    items_[(first_ + size_++) % items_.size()] = item;
  }
  T pop() {
    SLUICE_CHECK(size_ != 0);
    const T item = items_[first_];
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

class PreadBackend final : public Backend {
 public:
  PreadBackend(std::size_t queue_depth, int n_threads, base::StartThread start_thread)
      : capacity_(queue_depth), queued_(queue_depth), done_(queue_depth) {
    const auto run = [](void* self, int) noexcept { static_cast<PreadBackend*>(self)->read_until_stopped(); };
    const int error = threads_.start(n_threads, k_stack_bytes, run, this, start_thread);
    // Fewer threads read more slowly; only none at all is a failure.
    if (threads_.n_threads() == 0) {
      base::fail(ErrorCode::io, "cannot start a reader thread: {} (is a limit on processes reached?)",
                 std::strerror(error));
    }
  }
  PreadBackend(const PreadBackend&) = delete;
  PreadBackend& operator=(const PreadBackend&) = delete;

  /// Ends after the reads that are running; those still queued are dropped.
  ~PreadBackend() override { stop_threads(); }

  const char* name() const noexcept override { return "pread"; }
  std::size_t in_flight() const noexcept override { return in_flight_; }
  std::size_t capacity() const noexcept override { return capacity_; }

  std::size_t submit(std::span<const ReadOp> ops) override {
    const std::size_t n = std::min(ops.size(), capacity_ - in_flight_);
    if (n == 0) return 0;
    {
      const std::lock_guard lock(mutex_);
      for (const ReadOp& op : ops.first(n)) queued_.push(op);
    }
    in_flight_ += n;
    if (n == 1) {
      work_.notify_one();
    } else {
      work_.notify_all();
    }
    return n;
  }

  std::size_t wait(std::span<Completion> out, std::size_t min_count) override {
    SLUICE_CHECK(min_count <= in_flight_ && min_count <= out.size());
    std::unique_lock lock(mutex_);
    n_wanted_ = min_count;
    finished_.wait(lock, [&] { return done_.size() >= min_count; });
    n_wanted_ = 0;
    const std::size_t n = std::min(out.size(), done_.size());
    for (std::size_t i = 0; i < n; ++i) out[i] = done_.pop();
    in_flight_ -= n;
    return n;
  }

 private:
  void stop_threads() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    threads_.join();
  }

  void read_until_stopped() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return stop_ || !queued_.empty(); });
      if (stop_) return;
      const ReadOp op = queued_.pop();
      lock.unlock();
      const ssize_t n = pread(op.fd, op.destination, op.length, static_cast<off_t>(op.offset));
      const std::int64_t result = n >= 0 ? n : -errno;
      lock.lock();
      done_.push({op.tag, result});
      if (n_wanted_ != 0 && done_.size() >= n_wanted_) finished_.notify_one();
    }
  }

  const std::size_t capacity_;
  std::size_t in_flight_ = 0;  ///< Of the caller's thread only.

  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable work_;
  std::condition_variable finished_;
  Fifo<ReadOp> queued_;
  Fifo<Completion> done_;
  std::size_t n_wanted_ = 0;  ///< Completions that a sleeping wait() needs; 0 when none sleeps.
  bool stop_ = false;
  base::WorkerThreads threads_;
};

}  // namespace

std::unique_ptr<Backend> make_pread_backend(std::size_t queue_depth, int n_threads,
                                            base::StartThread start_thread) {
  SLUICE_CHECK(queue_depth >= 1 && queue_depth <= k_max_queue_depth && n_threads >= 1);
  const auto limit = static_cast<int>(std::min<std::size_t>(queue_depth, 256));
  return std::make_unique<PreadBackend>(queue_depth, std::min(n_threads, limit), start_thread);
}

}  // namespace sluice::storage
