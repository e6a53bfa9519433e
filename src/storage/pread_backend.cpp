#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/check.hpp"
#include "base/error.hpp"
#include "storage/backend.hpp"

namespace sluice::storage {
namespace {

constexpr std::size_t k_max_queue_depth = 4096;
// A reader calls pread and little else; the default stack of 8 MiB would count against address-space limits.
constexpr std::size_t k_stack_bytes = 128 * 1024;
constexpr std::size_t k_max_stack_bytes = 2 * 1024 * 1024;

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
  PreadBackend(std::size_t queue_depth, int n_threads)
      : capacity_(queue_depth), queued_(queue_depth), done_(queue_depth) {
    threads_.reserve(static_cast<std::size_t>(n_threads));
    try {
      start_threads(n_threads);
    } catch (...) {
      stop_threads();
      throw;
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
  void start_threads(int n_threads) {
    // Signals belong to the program's own threads; a new thread inherits the mask.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 0; i < n_threads && error == 0; ++i) error = start_thread();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    // Fewer threads read more slowly; only none at all is a failure.
    if (threads_.empty()) {
      base::fail(ErrorCode::io, "cannot start a reader thread: {} (is a limit on processes reached?)",
                 std::strerror(error));
    }
  }

  int start_thread() {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    // Thread-local data of loaded libraries lies on the stack too; where it needs more, the system says
    // EINVAL.
    error = EINVAL;
    for (std::size_t bytes = k_stack_bytes; error == EINVAL && bytes <= k_max_stack_bytes; bytes *= 2) {
      pthread_t thread{};
      error = pthread_attr_setstacksize(&attributes, bytes);
      if (error == 0) error = pthread_create(&thread, &attributes, &PreadBackend::run, this);
      if (error == 0) threads_.push_back(thread);
    }
    pthread_attr_destroy(&attributes);
    return error;
  }

  void stop_threads() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (pthread_t thread : threads_) pthread_join(thread, nullptr);
  }

  static void* run(void* self) noexcept {
    static_cast<PreadBackend*>(self)->read_until_stopped();
    return nullptr;
  }

  void read_until_stopped() {
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
  std::vector<pthread_t> threads_;

  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable work_;
  std::condition_variable finished_;
  Fifo<ReadOp> queued_;
  Fifo<Completion> done_;
  std::size_t n_wanted_ = 0;  ///< Completions that a sleeping wait() needs; 0 when none sleeps.
  bool stop_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_pread_backend(std::size_t queue_depth, int n_threads) {
  SLUICE_CHECK(queue_depth >= 1 && queue_depth <= k_max_queue_depth && n_threads >= 1);
  const auto limit = static_cast<int>(std::min<std::size_t>(queue_depth, 256));
  return std::make_unique<PreadBackend>(queue_depth, std::min(n_threads, limit));
}

}  // namespace sluice::storage
