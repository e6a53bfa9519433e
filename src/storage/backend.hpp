#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/worker_threads.hpp"
#include "sluice/options.hpp"

namespace sluice::storage {

/// One read of a contiguous range into memory. For a direct descriptor, offset, length and address are
/// aligned.
struct ReadOp {
  int fd = -1;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::byte* destination = nullptr;
  std::uint64_t tag = 0;  ///< Given back with the completion.
};

/// How one ReadOp ended. result > 0: bytes read, possibly fewer than asked (a short read); 0: end of file;
/// < 0: a negated errno (-EINTR and -EAGAIN are worth a retry, and -ECANCELED and -EFAULT when the submitting
/// thread has ended).
struct Completion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

/// The lowest layer: submits raw reads and reports raw completions, in any order. It retries nothing and
/// counts nothing; ReadQueue does, so that faults injected here exercise exactly the code that handles real
/// ones. One thread uses a backend; implementations may have threads of their own.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const noexcept = 0;  ///< "io_uring", "pread", "fault(...)".
  /// Starts as many of `ops` as there is room for, in order, and returns how many (may be 0 when full).
  virtual std::size_t submit(std::span<const ReadOp> ops) = 0;
  /// Writes up to out.size() completions; blocks until at least `min_count` are there (which must not exceed
  /// what is in flight or out.size()). min_count 0 polls.
  ///
  /// When the backend itself fails, so that no read can be completed any more, this throws Error(io). Nothing
  /// is in flight then, the reads that were are never reported, and submit() and wait() throw the same again.
  virtual std::size_t wait(std::span<Completion> out, std::size_t min_count) = 0;
  virtual std::size_t in_flight() const noexcept = 0;
  virtual std::size_t capacity() const noexcept = 0;
};

/// io_uring. Returns null and says why in *reason when the kernel, seccomp or a sysctl forbids it or the
/// build has no liburing.
std::unique_ptr<Backend> make_uring_backend(std::size_t queue_depth, std::string* reason);
/// Threads that call pread: works everywhere. With fewer threads when the system refuses some; throws
/// Error(io) when it refuses all.
std::unique_ptr<Backend> make_pread_backend(std::size_t queue_depth, int n_threads,
                                            base::StartThread start_thread = pthread_create);

/// Reads that a backend of make_backend() takes at once.
inline constexpr std::size_t k_queue_depth = 64;
/// pread keeps only as many reads in flight as it has threads (docs/performance.md has 4 against 16). Models
/// and profiles read through the same backend, so that a profile promises what a model gets.
inline constexpr int k_pread_threads = 16;

struct ChosenBackend {
  std::unique_ptr<Backend> backend;
  std::string description;  ///< Its name, and why it is not io_uring where that was tried.
};
/// The backend a user asked for. Throws Error(unsupported) when it must be io_uring and cannot, Error(io)
/// when not even pread's threads start.
ChosenBackend make_backend(IoBackend kind);

/// Faults for tests, drawn from a seeded generator so that a run can be repeated.
struct FaultPlan {
  std::uint64_t seed = 1;
  double short_read_rate =
      0;  ///< Share of reads that return fewer bytes (a multiple of `granularity_bytes`).
  std::uint32_t granularity_bytes = 512;
  double eintr_rate = 0;
  double eagain_rate = 0;
  double delay_rate = 0;          ///< Share of reads whose completion is held back ...
  std::uint32_t delay_polls = 3;  ///< ... for this many calls of wait().
  bool reorder = false;           ///< Completions are handed out in random order.
  double full_rate = 0;  ///< Share of submit calls that accept at most one op although there is room.
  struct Range {
    std::uint64_t begin = 0, end = 0;
    int error = 5;
  };
  /// This call of wait() (the first is 1) finds that the backend has failed; 0: none does.
  std::uint64_t fails_at_wait = 0;
  std::vector<Range> failing_ranges =
      {};  ///< Reads that touch one of these file offsets complete with -error (EIO).
  /// Faults happen only to reads of descriptors for which this holds; empty: to all.
  std::function<bool(int fd)> applies_to = {};
};
std::unique_ptr<Backend> make_fault_backend(std::unique_ptr<Backend> inner, const FaultPlan& plan);

}  // namespace sluice::storage
