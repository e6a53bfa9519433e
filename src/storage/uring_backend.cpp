#include "storage/backend.hpp"

#ifndef SLUICE_HAVE_URING

namespace sluice::storage {

std::unique_ptr<Backend> make_uring_backend(std::size_t, std::string* reason) {
  if (reason != nullptr) *reason = "this build has no io_uring (SLUICE_URING is OFF)";
  return nullptr;
}

}  // namespace sluice::storage

#else

#include <liburing.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/error.hpp"

// Flags of newer kernels, which older headers lack.
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif
#ifndef IORING_SETUP_TASKRUN_FLAG
#define IORING_SETUP_TASKRUN_FLAG (1U << 9)
#endif

namespace sluice::storage {
namespace {

constexpr std::size_t k_max_queue_depth = 4096;
// A kernel short of memory refuses to take reads for a while: 5000 waits of 1 ms before giving up.
constexpr int k_max_busy_retries = 5000;
constexpr long k_busy_wait_ns = 1'000'000;

bool is_busy(int error) noexcept {
  return error == EAGAIN || error == EBUSY || error == ENOMEM;
}

class UringBackend final : public Backend {
 public:
  explicit UringBackend(std::size_t queue_depth) : capacity_(queue_depth), cqes_(queue_depth) {}
  UringBackend(const UringBackend&) = delete;
  UringBackend& operator=(const UringBackend&) = delete;

  ~UringBackend() override {
    if (!is_open_) return;
    // Closing a ring does not wait for its reads, and the caller is about to free their buffers.
    try {
      Completion ignored[16];
      while (in_flight_ != 0) wait(ignored, 1);
    } catch (const Error&) {  // It has waited as well as it could.
    }
    io_uring_queue_exit(&ring_);
  }

  // 0 or an errno.
  int open() {
    // Not SINGLE_ISSUER and DEFER_TASKRUN: they tie the ring to one thread for life, while a model may be
    // driven by different threads one after another. COOP_TASKRUN spares the interrupts and has no such rule.
    int error = io_uring_queue_init(static_cast<unsigned>(capacity_), &ring_,
                                    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (error == -EINVAL) error = io_uring_queue_init(static_cast<unsigned>(capacity_), &ring_, 0);
    is_open_ = error == 0;
    return -error;
  }

  // 0 or an errno: a filter may allow making a ring and forbid using it.
  int try_it() {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    SLUICE_CHECK(sqe != nullptr);
    io_uring_prep_nop(sqe);
    int result = 0;
    do {
      result = io_uring_submit_and_wait(&ring_, 1);
    } while (result == -EINTR);
    if (result < 0) return -result;
    io_uring_cqe* cqe = nullptr;
    do {
      result = io_uring_wait_cqe(&ring_, &cqe);
    } while (result == -EINTR);
    if (result < 0) return -result;
    io_uring_cqe_seen(&ring_, cqe);
    return 0;
  }

  bool can_read() {
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool ok = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    io_uring_free_probe(probe);
    return ok;
  }

  const char* name() const noexcept override { return "io_uring"; }
  std::size_t in_flight() const noexcept override { return in_flight_; }
  std::size_t capacity() const noexcept override { return capacity_; }

  std::size_t submit(std::span<const ReadOp> ops) override {
    if (hard_error_ != 0) fail();
    const std::size_t n = std::min(ops.size(), capacity_ - in_flight_);
    for (const ReadOp& op : ops.first(n)) {
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      SLUICE_CHECK(sqe != nullptr);  // The ring has at least capacity_ entries.
      io_uring_prep_read(sqe, op.fd, op.destination, op.length, op.offset);
      sqe->user_data = op.tag;
    }
    in_flight_ += n;
    n_unsubmitted_ += n;
    // What the kernel does not take now (no memory) stays in the ring; wait() offers it again.
    if (n != 0) push();
    return n;
  }

  std::size_t wait(std::span<Completion> out, std::size_t min_count) override {
    if (hard_error_ != 0) fail();
    SLUICE_CHECK(min_count <= in_flight_ && min_count <= out.size());
    std::size_t n = reap(out, 0);
    if (n_unsubmitted_ != 0 && n >= min_count) push();
    int n_busy = 0;
    while (n < min_count) {
      const int error = enter(static_cast<unsigned>(min_count - n));
      n = reap(out, n);
      if (error == 0 || error == EINTR) continue;
      if (!is_busy(error) || ++n_busy > k_max_busy_retries) {
        hard_error_ = error;
        end_reads();
        fail();
      }
      pause();
    }
    return n;
  }

 private:
  [[noreturn]] void fail() const {
    base::fail(ErrorCode::io,
               "io_uring_enter failed: {}; the ring is of no use any more. Open the model again, or use the "
               "pread backend (--io pread)",
               std::strerror(hard_error_));
  }

  static void pause() noexcept {
    const struct timespec time = {0, k_busy_wait_ns};
    nanosleep(&time, nullptr);
  }

  // After a hard error: reads that the kernel has still write to their buffers, and their completions still
  // come into the memory shared with it. Waits for them as long as for a busy kernel.
  void end_reads() noexcept {
    in_flight_ -= std::exchange(n_unsubmitted_, 0);
    for (int i = 0; i < k_max_busy_retries && in_flight_ != 0; ++i) {
      const unsigned count =
          io_uring_peek_batch_cqe(&ring_, cqes_.data(), static_cast<unsigned>(cqes_.size()));
      io_uring_cq_advance(&ring_, count);
      in_flight_ -= count;
      if (in_flight_ != 0) pause();
    }
    in_flight_ = 0;
    // Somebody closed the descriptor, and its number may be that of another file by now.
    if (hard_error_ == EBADF || hard_error_ == EOPNOTSUPP) ring_.ring_fd = -1;
  }

  // Hands prepared reads to the kernel without waiting. Returns 0 or an errno; the rest stays prepared.
  int push() {
    while (n_unsubmitted_ != 0) {
      const int taken = io_uring_submit(&ring_);
      if (taken == -EINTR) continue;
      if (taken <= 0) return taken < 0 ? -taken : EAGAIN;
      n_unsubmitted_ -= std::min(n_unsubmitted_, static_cast<std::size_t>(taken));
    }
    return 0;
  }

  // Pushes what is prepared and sleeps until `min_count` completions are there. Returns 0 or an errno.
  int enter(unsigned min_count) {
    const int pushed = push();
    const std::size_t in_kernel = in_flight_ - n_unsubmitted_;
    if (in_kernel == 0) return pushed;
    // When the kernel refused some, the ones it has may have to end first.
    const unsigned wanted = pushed == 0 ? min_count : 1;
    io_uring_cqe* cqe = nullptr;
    return -io_uring_wait_cqe_nr(&ring_, &cqe, wanted);
  }

  std::size_t reap(std::span<Completion> out, std::size_t n) {
    const std::size_t room = std::min(out.size() - n, cqes_.size());
    if (room == 0) return n;
    const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes_.data(), static_cast<unsigned>(room));
    for (unsigned i = 0; i < count; ++i) out[n++] = {cqes_[i]->user_data, cqes_[i]->res};
    io_uring_cq_advance(&ring_, count);
    in_flight_ -= count;
    return n;
  }

  std::size_t capacity_;
  std::vector<io_uring_cqe*> cqes_;
  io_uring ring_{};
  bool is_open_ = false;
  std::size_t in_flight_ = 0;      ///< Accepted and not yet reported.
  std::size_t n_unsubmitted_ = 0;  ///< Of these, prepared in the ring and not yet taken by the kernel.
  int hard_error_ = 0;             ///< Why the ring is of no use any more.
};

std::string explain(int error) {
  switch (error) {
    case ENOSYS:
      return "the kernel has no io_uring, or a sandbox hides it";
    case EPERM:
    case EACCES:
      return "io_uring is forbidden here (kernel.io_uring_disabled, or a seccomp filter as in containers)";
    case ENOMEM:
      return "no locked memory for the ring (raise RLIMIT_MEMLOCK, \"ulimit -l\")";
    case EMFILE:
    case ENFILE:
      return "no file descriptor is left for the ring";
    default:
      return std::string("io_uring cannot be used: ") + std::strerror(error);
  }
}

}  // namespace

std::unique_ptr<Backend> make_uring_backend(std::size_t queue_depth, std::string* reason) {
  SLUICE_CHECK(queue_depth >= 1 && queue_depth <= k_max_queue_depth);
  auto backend = std::make_unique<UringBackend>(queue_depth);
  int error = backend->open();
  if (error == 0) error = backend->try_it();
  std::string why;
  if (error != 0) {
    why = explain(error);
  } else if (!backend->can_read()) {
    why =
        "this kernel's io_uring cannot read into plain buffers (needs Linux 5.6), or a sandbox forbids "
        "io_uring_register";
  }
  if (why.empty()) return backend;
  if (reason != nullptr) *reason = why;
  return nullptr;
}

}  // namespace sluice::storage

#endif
