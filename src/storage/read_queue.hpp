#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "storage/backend.hpp"
#include "storage/file.hpp"

namespace sluice::storage {

/// Reads are made for one of two reasons; demand always goes to the drive first.
enum class Priority : std::uint8_t { demand, speculative };

/// A request for a byte range of a file. The bytes are read as the enclosing aligned window, straight into
/// `destination`; the wanted bytes then start at destination + place_in_window(), so nothing is copied.
struct ReadRequest {
  const File* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::byte* destination = nullptr;  ///< Aligned to file->alignment_bytes(); room for window_bytes().
  std::uint64_t id = 0;              ///< Chosen by the caller, given back by wait().
  Priority priority = Priority::demand;
  /// Another copy of `file`, with the same size and alignment_bytes(), or null. Each piece is read from the
  /// one that will probably have it first (choose_copy()), and from the other when that fails.
  const File* copy = nullptr;
};

/// The aligned window that encloses [offset, offset + length), cut at nothing: the last block may pass the
/// end of the file, where a direct read returns short.
struct Window {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
Window read_window(std::uint64_t offset, std::uint64_t length, std::uint32_t alignment_bytes) noexcept;
/// Where in its window the byte at `offset` lies.
constexpr std::uint64_t place_in_window(std::uint64_t offset, std::uint32_t alignment_bytes) noexcept {
  return offset & (std::uint64_t{alignment_bytes} - 1);
}

struct ReadResult {
  std::uint64_t id = 0;
  int error = 0;                   ///< 0, or a positive errno.
  std::uint64_t error_offset = 0;  ///< File offset of the piece that failed.
};

struct IoStatistics {
  std::uint64_t n_requests = 0;
  std::uint64_t n_reads = 0;          ///< Pieces submitted to the backend, retries included.
  std::uint64_t requested_bytes = 0;  ///< What callers wanted.
  std::uint64_t read_bytes = 0;       ///< What the backend delivered (aligned windows).
  std::uint64_t n_retries = 0;        ///< Short reads, EINTR and EAGAIN that were continued.
  std::uint64_t busy_ns = 0;          ///< Time with at least one read in flight.
  std::uint64_t wait_ns = 0;          ///< Time the caller was blocked in wait().
};

/// What was read from one drive (one File::device()); copies count apart.
struct DriveStatistics {
  const File* file = nullptr;    ///< The first that was read from it.
  bool is_copy = false;          ///< It is a ReadRequest::copy.
  std::uint64_t read_bytes = 0;  ///< As in IoStatistics.
  std::uint64_t busy_ns = 0;     ///< Time with a read of this drive in flight.
  std::uint64_t n_failed = 0;    ///< Reads that failed for good and were done from another copy.
};

/// Splits requests into pieces, keeps the backend's queue full with demand before speculation, continues
/// short reads, retries EINTR/EAGAIN (bounded), and reports whole requests. Bounded: at most `max_requests`
/// at once. Single-threaded.
///
/// When the backend itself fails, submit() and wait() throw its Error(io), and so does every later call of
/// them: no result is delivered then, and no read is under way.
class ReadQueue {
 public:
  struct Options {
    std::uint32_t piece_bytes = 512 * 1024;
    std::size_t max_requests = 1024;
    /// After a buffered read, drops its window from the page cache, which a memory cgroup counts as ours.
    bool drop_page_cache = true;
    /// Nanoseconds; tests have a clock of their own.
    std::uint64_t (*clock)() noexcept = base::now_ns;
  };
  ReadQueue(std::unique_ptr<Backend> backend, const Options& options);
  ~ReadQueue();  ///< Never throws. Waits for reads in flight: their buffers must outlive the queue.

  /// Queues requests and starts what fits. All requests of one call are known to the drive together.
  /// Requires n_pending() + requests.size() <= max_requests.
  void submit(std::span<const ReadRequest> requests);
  /// Up to out.size() finished requests; blocks for at least min_count (at most n_pending()).
  std::size_t wait(std::span<ReadResult> out, std::size_t min_count);
  /// Raises a speculative request to demand (its unit is wanted now). No effect when it is already running.
  void promote(std::uint64_t id);
  /// Drops speculative requests that have not started; their ids are reported with error ECANCELED.
  void cancel_speculative();

  std::size_t n_pending() const noexcept;  ///< Requests submitted and not yet reported.
  const IoStatistics& statistics() const noexcept;
  /// In the order in which they were first read; valid until the next call of anything else.
  std::vector<DriveStatistics> drives() const;
  const Backend& backend() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::storage
