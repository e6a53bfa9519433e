#include "storage/read_queue.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "storage/copy_choice.hpp"
#include "storage/index_list.hpp"

namespace sluice::storage {
namespace {

// Attempts that bring nothing (EINTR, EAGAIN, less than a block) before a piece counts as failed.
constexpr std::uint32_t k_max_retries = 100;
constexpr std::uint64_t k_page_bytes = 4096;
// A piece must fit a 32-bit length and stay below the kernel's largest read, whatever the alignment.
constexpr std::uint64_t k_max_piece_bytes = 1u << 30;

// A thread that ends leaves its io_uring reads behind: queued ones come back as ECANCELED, and buffered ones
// that still wait for a page as EFAULT, because the kernel then copies without the process's memory at hand.
// Both succeed when asked again by a living thread; a buffer that is really bad fails each time and is
// reported.
bool is_transient(int error) noexcept {
  return error == EINTR || error == EAGAIN || error == ECANCELED || error == EFAULT;
}

/// One request in its pool slot. It is "unsplit" while pieces of it are still to be made.
struct Request {
  ReadRequest ask;
  Window window;
  std::uint64_t next_offset = 0;  ///< File offset where the next piece begins.
  std::uint64_t piece_bytes = 0;
  std::uint32_t n_pieces = 0;  ///< Pieces made and not yet ended.
  int error = 0;
  std::uint64_t error_offset = 0;
  bool is_pending = false;  ///< Neither free nor finished.

  bool is_unsplit() const noexcept { return next_offset < window.offset + window.length; }
};

/// A part of a request's window, read at once. After a short read it becomes the rest of itself.
struct Piece {
  std::uint32_t request = k_no_index;
  std::uint32_t n_retries = 0;
  std::uint64_t offset = 0;
  std::uint64_t end = 0;
  const File* file = nullptr;   ///< Which copy it is read from; null: not chosen yet.
  std::uint32_t drive = 0;      ///< Of `file`.
  std::uint64_t in_flight = 0;  ///< Bytes the backend was asked for.
  bool was_tried = false;       ///< It stays with its copy,
  bool has_failed = false;      ///< which is the second one it was tried with.
};

/// A drive that failed so often is left alone while there is another copy.
constexpr std::uint64_t k_max_failed = 16;
/// Shards may lie on many drives; more than these cost an allocation each.
constexpr std::size_t k_expected_drives = 8;

struct Drive {
  DriveStatistics statistics;
  DriveMeter meter;
  std::uint64_t n_passed_over = 0;
};

}  // namespace

Window read_window(std::uint64_t offset, std::uint64_t length, std::uint32_t alignment_bytes) noexcept {
  SLUICE_CHECK(base::is_power_of_two(alignment_bytes));
  const std::uint64_t begin = base::align_down(offset, alignment_bytes);
  if (length == 0) return {begin, 0};
  return {begin, base::align_up(offset + length, alignment_bytes) - begin};
}

/// Life of a request: unsplit[priority] -> running (in no list) -> finished -> free.
/// Life of a piece: ready[priority] (made but not accepted, or to be continued) <-> in the backend -> free.
struct ReadQueue::State {
  State(std::unique_ptr<Backend> backend_in, const Options& options_in)
      : backend(std::move(backend_in)),
        options(options_in),
        requests(options.max_requests),
        request_links(options.max_requests),
        pieces(2 * backend->capacity()),
        piece_links(pieces.size()) {
    for (std::uint32_t i = 0; i < requests.size(); ++i) free_requests.push_back(i);
    for (std::uint32_t i = 0; i < pieces.size(); ++i) free_pieces.push_back(i);
    batch.reserve(backend->capacity());
    completions.resize(backend->capacity());
    drives.reserve(k_expected_drives);
  }

  /// Does `work`, which may use the backend, unless the backend has failed before. Throws what it threw then.
  template <typename Work>
  void with_backend(Work&& work) {
    if (failure) throw *failure;
    try {
      work();
    } catch (const Error& error) {
      failure = error;
      throw;
    }
  }
  void add(const ReadRequest& ask);
  void fill();
  bool gather_one();
  bool gather_ready(Priority priority);
  bool gather_unsplit(Priority priority);
  void gather(std::uint32_t piece);
  void reap(std::size_t min_count);
  void complete(const Completion& completion);
  void retry(std::uint32_t piece, int error_when_spent);
  void fail_piece(std::uint32_t piece, int error);
  void choose_file(Piece& piece);
  std::uint32_t drive_of(const File& file, bool is_copy);
  void end_piece(std::uint32_t piece, int error);
  void finish(std::uint32_t request);

  IndexList& unsplit(Priority priority) noexcept {
    return priority == Priority::demand ? unsplit_demand : unsplit_speculative;
  }
  IndexList& ready(Priority priority) noexcept {
    return priority == Priority::demand ? ready_demand : ready_speculative;
  }

  std::unique_ptr<Backend> backend;
  std::optional<Error> failure;  ///< Of the backend.
  Options options;
  IoStatistics statistics;
  std::uint64_t busy_since_ns = 0;  ///< 0 while nothing is in flight.
  std::uint64_t now_ns = 0;         ///< Of the batch that is being gathered or the completions being taken.
  std::vector<Drive> drives;

  std::vector<Request> requests;
  std::vector<Link> request_links;
  IndexList free_requests{request_links};
  IndexList unsplit_demand{request_links};
  IndexList unsplit_speculative{request_links};
  IndexList finished{request_links};

  /// Twice the backend's capacity: even when that many speculative pieces wait to be continued, demand finds
  /// free ones.
  std::vector<Piece> pieces;
  std::vector<Link> piece_links;
  IndexList free_pieces{piece_links};
  IndexList ready_demand{piece_links};
  IndexList ready_speculative{piece_links};

  std::vector<ReadOp> batch;  ///< Being handed to the backend; tags are piece indexes.
  std::vector<Completion> completions;
};

void ReadQueue::State::add(const ReadRequest& ask) {
  SLUICE_CHECK(ask.file != nullptr);
  SLUICE_CHECK(!free_requests.empty());
  const File& file = *ask.file;
  const std::uint32_t alignment = file.alignment_bytes();
  const std::uint32_t index = free_requests.pop_front();
  Request& request = requests[index];
  request = Request{};
  request.ask = ask;
  request.is_pending = true;
  statistics.n_requests += 1;
  const auto end = base::checked_add(ask.offset, ask.length);
  if (!end || *end > file.size_bytes()) {
    request.error = ENODATA;
    request.error_offset = file.size_bytes();
    finish(index);
    return;
  }
  statistics.requested_bytes += ask.length;
  if (ask.length == 0) {
    finish(index);
    return;
  }
  SLUICE_CHECK(ask.destination != nullptr);
  SLUICE_CHECK(reinterpret_cast<std::uintptr_t>(ask.destination) % alignment == 0);
  SLUICE_CHECK(ask.copy == nullptr ||
               (ask.copy->alignment_bytes() == alignment && ask.copy->size_bytes() == file.size_bytes()));
  request.window = read_window(ask.offset, ask.length, alignment);
  const std::uint64_t wanted = std::min<std::uint64_t>(options.piece_bytes, k_max_piece_bytes);
  request.piece_bytes = std::max<std::uint64_t>(base::align_down(wanted, alignment), alignment);
  request.next_offset = request.window.offset;
  unsplit(ask.priority).push_back(index);
}

// Keeps the backend full: demand first, and of equals what was begun before what is new.
void ReadQueue::State::fill() {
  for (;;) {
    batch.clear();
    const std::size_t room = backend->capacity() - backend->in_flight();
    now_ns = 0;
    while (batch.size() < room && gather_one()) {
    }
    if (batch.empty()) return;
    const bool was_idle = backend->in_flight() == 0;
    const std::size_t n = backend->submit(batch);
    SLUICE_CHECK(n <= batch.size() && (n != 0 || !was_idle));
    statistics.n_reads += n;
    if (was_idle) busy_since_ns = now_ns;
    for (std::size_t i = batch.size(); i > n; --i) {
      const auto piece = static_cast<std::uint32_t>(batch[i - 1].tag);
      drives[pieces[piece].drive].meter.retract(pieces[piece].in_flight);
      if (!pieces[piece].was_tried) pieces[piece].file = nullptr;
      ready(requests[pieces[piece].request].ask.priority).push_front(piece);
    }
    if (n < batch.size() || n == room) return;
  }
}

bool ReadQueue::State::gather_one() {
  return gather_ready(Priority::demand) || gather_unsplit(Priority::demand) ||
         gather_ready(Priority::speculative) || gather_unsplit(Priority::speculative);
}

bool ReadQueue::State::gather_ready(Priority priority) {
  while (!ready(priority).empty()) {
    const std::uint32_t piece = ready(priority).pop_front();
    if (requests[pieces[piece].request].error == 0) {
      gather(piece);
      return true;
    }
    end_piece(piece, 0);  // The request has failed elsewhere: its rest is not worth reading.
  }
  return false;
}

bool ReadQueue::State::gather_unsplit(Priority priority) {
  if (unsplit(priority).empty() || free_pieces.empty()) return false;
  const std::uint32_t index = unsplit(priority).front();
  Request& request = requests[index];
  const std::uint32_t piece = free_pieces.pop_front();
  const std::uint64_t window_end = request.window.offset + request.window.length;
  const std::uint64_t end =
      request.next_offset + std::min(request.piece_bytes, window_end - request.next_offset);
  pieces[piece] = Piece{};
  pieces[piece].request = index;
  pieces[piece].offset = request.next_offset;
  pieces[piece].end = end;
  request.next_offset = end;
  request.n_pieces += 1;
  if (!request.is_unsplit()) unsplit(priority).remove(index);
  gather(piece);
  return true;
}

void ReadQueue::State::gather(std::uint32_t index) {
  Piece& piece = pieces[index];
  const Request& request = requests[piece.request];
  if (now_ns == 0) now_ns = options.clock();
  if (piece.file == nullptr) choose_file(piece);
  const File& file = *piece.file;
  piece.in_flight = piece.end - piece.offset;
  if (!file.is_direct()) piece.in_flight = std::min(piece.in_flight, file.size_bytes() - piece.offset);
  drives[piece.drive].meter.start(piece.in_flight, now_ns);
  const int fd = file.is_direct() ? file.direct_fd() : file.buffered_fd();
  std::byte* const destination = request.ask.destination + (piece.offset - request.window.offset);
  batch.push_back({fd, piece.offset, static_cast<std::uint32_t>(piece.in_flight), destination, index});
}

std::uint32_t ReadQueue::State::drive_of(const File& file, bool is_copy) {
  for (std::uint32_t i = 0; i < drives.size(); ++i) {
    const DriveStatistics& known = drives[i].statistics;
    if (known.is_copy == is_copy && known.file->device() == file.device()) return i;
  }
  drives.push_back({});
  drives.back().statistics.file = &file;
  drives.back().statistics.is_copy = is_copy;
  return static_cast<std::uint32_t>(drives.size() - 1);
}

void ReadQueue::State::choose_file(Piece& piece) {
  const ReadRequest& ask = requests[piece.request].ask;
  piece.file = ask.file;
  piece.drive = drive_of(*ask.file, false);
  if (ask.copy == nullptr) return;
  const std::uint32_t other = drive_of(*ask.copy, true);
  const auto state_of = [](const Drive& drive) {
    return CopyState{drive.meter.outstanding_bytes(), drive.meter.bytes_per_second(), drive.n_passed_over,
                     drive.statistics.n_failed >= k_max_failed};
  };
  std::uint32_t passed_over = other;
  if (choose_copy(state_of(drives[piece.drive]), state_of(drives[other]), piece.end - piece.offset) == 1) {
    passed_over = piece.drive;
    piece.file = ask.copy;
    piece.drive = other;
  }
  drives[piece.drive].n_passed_over = 0;
  ++drives[passed_over].n_passed_over;
}

void ReadQueue::State::reap(std::size_t min_count) {
  if (backend->in_flight() == 0) return;
  const std::uint64_t begin_ns = min_count != 0 ? options.clock() : 0;
  const std::size_t n = backend->wait(completions, min_count);
  if (n == 0 && min_count == 0) return;
  now_ns = options.clock();
  if (min_count != 0) statistics.wait_ns += now_ns - begin_ns;
  if (backend->in_flight() == 0) {
    statistics.busy_ns += now_ns - busy_since_ns;
    busy_since_ns = 0;
  }
  for (std::size_t i = 0; i < n; ++i) complete(completions[i]);
}

void ReadQueue::State::complete(const Completion& completion) {
  const auto index = static_cast<std::uint32_t>(completion.tag);
  SLUICE_CHECK(index < pieces.size() && pieces[index].request != k_no_index);
  Piece& piece = pieces[index];
  const Request& request = requests[piece.request];
  const File& file = *piece.file;
  const bool is_direct = file.is_direct();
  const auto got = static_cast<std::uint64_t>(std::max<std::int64_t>(completion.result, 0));
  SLUICE_CHECK(got <= piece.in_flight);
  // The drive delivers the block a file ends in whole; the kernel counts it so and cuts it afterwards.
  const std::uint64_t delivered = is_direct ? base::align_up(got, file.alignment_bytes()) : got;
  statistics.read_bytes += delivered;
  drives[piece.drive].meter.finish(piece.in_flight, delivered, now_ns);
  piece.was_tried = true;
  if (completion.result < 0) {
    const auto error = static_cast<int>(-completion.result);
    if (is_transient(error)) {
      retry(index, error);
    } else {
      fail_piece(index, error);
    }
    return;
  }
  const std::uint64_t reached = piece.offset + got;
  // Only the wanted bytes must arrive: the window's edges may lie beyond the end of the file.
  if (reached >= std::min(piece.end, request.ask.offset + request.ask.length)) {
    end_piece(index, 0);
    return;
  }
  if (got == 0) {
    fail_piece(index, ENODATA);  // The file is shorter than when it was opened.
    return;
  }
  // A direct read goes on at a block; what was read of a partial one is read again.
  const std::uint64_t next = is_direct ? base::align_down(reached, file.alignment_bytes()) : reached;
  if (next == piece.offset) {
    retry(index, ENODATA);
    return;
  }
  piece.offset = next;
  statistics.n_retries += 1;
  ready(request.ask.priority).push_back(index);
}

void ReadQueue::State::retry(std::uint32_t index, int error_when_spent) {
  Piece& piece = pieces[index];
  if (piece.n_retries == k_max_retries) {
    fail_piece(index, error_when_spent);
    return;
  }
  piece.n_retries += 1;
  statistics.n_retries += 1;
  ready(requests[piece.request].ask.priority).push_back(index);
}

// A piece that failed for good is tried once more, from the other copy.
void ReadQueue::State::fail_piece(std::uint32_t index, int error) {
  Piece& piece = pieces[index];
  const ReadRequest& ask = requests[piece.request].ask;
  if (ask.copy == nullptr || piece.has_failed || requests[piece.request].error != 0) {
    end_piece(index, error);
    return;
  }
  const File& bad = *piece.file;
  const File& good = piece.file == ask.file ? *ask.copy : *ask.file;
  const std::uint64_t n_failed = ++drives[piece.drive].statistics.n_failed;
  if (n_failed == 1) {
    base::warn("{}: a read at offset {} failed: {}; {} is read instead (check the drive)", bad.path(),
               piece.offset, std::strerror(error), good.path());
  } else if (n_failed == k_max_failed) {
    base::warn("{}: {} reads failed; its drive is left alone where there is another copy", bad.path(),
               n_failed);
  }
  // After a short buffered read the rest may begin inside a block.
  piece.offset = base::align_down(piece.offset, good.alignment_bytes());
  piece.n_retries = 0;
  piece.has_failed = true;
  piece.file = &good;
  piece.drive = drive_of(good, &good == ask.copy);
  statistics.n_retries += 1;
  ready(ask.priority).push_back(index);
}

void ReadQueue::State::end_piece(std::uint32_t index, int error) {
  Piece& piece = pieces[index];
  const std::uint32_t owner = piece.request;
  Request& request = requests[owner];
  if (error != 0) {
    if (request.error == 0 || piece.offset < request.error_offset) {
      request.error = error;
      request.error_offset = piece.offset;
    }
    // No further pieces are made; those in flight must still end before the buffer is the caller's again.
    if (request.is_unsplit()) {
      unsplit(request.ask.priority).remove(owner);
      request.next_offset = request.window.offset + request.window.length;
    }
  }
  piece.request = k_no_index;
  free_pieces.push_back(index);
  request.n_pieces -= 1;
  if (request.n_pieces == 0 && !request.is_unsplit()) finish(owner);
}

// The request must be in no list.
void ReadQueue::State::finish(std::uint32_t index) {
  Request& request = requests[index];
  request.is_pending = false;
  finished.push_back(index);
#ifdef POSIX_FADV_DONTNEED
  for (const File* file : {request.ask.file, request.ask.copy}) {
    if (file == nullptr || !options.drop_page_cache || file->is_direct() || request.window.length == 0)
      continue;
    // Only whole pages are dropped.
    const std::uint64_t begin = base::align_down(request.window.offset, k_page_bytes);
    const std::uint64_t end = base::align_up(request.window.offset + request.window.length, k_page_bytes);
    posix_fadvise(file->buffered_fd(), static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                  POSIX_FADV_DONTNEED);
  }
#endif
}

ReadQueue::ReadQueue(std::unique_ptr<Backend> backend, const Options& options) {
  SLUICE_CHECK(backend != nullptr && backend->capacity() >= 1 && backend->capacity() < k_no_index);
  SLUICE_CHECK(options.max_requests >= 1 && options.max_requests < k_no_index && options.piece_bytes >= 1);
  state_ = std::make_unique<State>(std::move(backend), options);
}

ReadQueue::~ReadQueue() {
  Backend& backend = *state_->backend;
  try {
    while (backend.in_flight() != 0) backend.wait(state_->completions, 1);
  } catch (const Error&) {  // Nothing is in flight then.
  }
}

void ReadQueue::submit(std::span<const ReadRequest> requests) {
  state_->with_backend([&] {
    SLUICE_CHECK(requests.size() <= state_->options.max_requests - n_pending());
    for (const ReadRequest& request : requests) state_->add(request);
    state_->fill();
  });
}

std::size_t ReadQueue::wait(std::span<ReadResult> out, std::size_t min_count) {
  State& state = *state_;
  state.with_backend([&] {
    SLUICE_CHECK(min_count <= out.size() && min_count <= n_pending());
    state.reap(0);
    state.fill();
    while (state.finished.size() < min_count) {
      state.reap(1);
      state.fill();
    }
  });
  std::size_t n = 0;
  while (n < out.size() && !state.finished.empty()) {
    const std::uint32_t index = state.finished.pop_front();
    const Request& request = state.requests[index];
    out[n++] = {request.ask.id, request.error, request.error_offset};
    state.free_requests.push_back(index);
  }
  return n;
}

void ReadQueue::promote(std::uint64_t id) {
  State& state = *state_;
  for (std::uint32_t index = 0; index < state.requests.size(); ++index) {
    Request& request = state.requests[index];
    if (!request.is_pending || request.ask.id != id || request.ask.priority == Priority::demand) continue;
    if (request.is_unsplit()) {
      state.unsplit_speculative.remove(index);
      state.unsplit_demand.push_back(index);
    }
    request.ask.priority = Priority::demand;
    for (std::uint32_t piece = state.ready_speculative.front(); piece != k_no_index;) {
      const std::uint32_t next = state.ready_speculative.after(piece);
      if (state.pieces[piece].request == index) {
        state.ready_speculative.remove(piece);
        state.ready_demand.push_back(piece);
      }
      piece = next;
    }
    return;
  }
}

void ReadQueue::cancel_speculative() {
  State& state = *state_;
  for (std::uint32_t index = state.unsplit_speculative.front(); index != k_no_index;) {
    const std::uint32_t next = state.unsplit_speculative.after(index);
    Request& request = state.requests[index];
    if (request.next_offset == request.window.offset) {
      state.unsplit_speculative.remove(index);
      request.error = ECANCELED;
      request.error_offset = request.ask.offset;
      request.window.length = 0;  // Nothing was read.
      state.finish(index);
    }
    index = next;
  }
}

std::size_t ReadQueue::n_pending() const noexcept {
  return state_->options.max_requests - state_->free_requests.size();
}
const IoStatistics& ReadQueue::statistics() const noexcept {
  return state_->statistics;
}
std::vector<DriveStatistics> ReadQueue::drives() const {
  std::vector<DriveStatistics> all;
  for (const Drive& drive : state_->drives) {
    all.push_back(drive.statistics);
    all.back().read_bytes = drive.meter.read_bytes();
    all.back().busy_ns = drive.meter.busy_ns();
  }
  return all;
}
const Backend& ReadQueue::backend() const noexcept {
  return *state_->backend;
}

}  // namespace sluice::storage
