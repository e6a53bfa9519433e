#include "storage/drive_probe.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "platform/memory.hpp"

namespace sluice::storage {
namespace {

constexpr std::uint32_t k_max_retries = 1000;
/// Share of the time for reads in order; the rest is divided among the combinations.
constexpr double k_sequential_share = 0.2;
/// Turns of each combination.
constexpr std::size_t k_n_rounds = 3;

/// Where the next read of a combination goes.
class Places {
 public:
  Places(std::uint64_t n_places, bool in_order, base::SplitMix64& random)
      : n_(n_places), in_order_(in_order), random_(random), next_(random.below(n_places)) {}
  std::uint64_t next() noexcept {
    if (!in_order_) return random_.below(n_);
    const std::uint64_t place = next_;
    next_ = (next_ + 1) % n_;
    return place;
  }

 private:
  std::uint64_t n_;
  bool in_order_;
  base::SplitMix64& random_;
  std::uint64_t next_;
};

class Probe {
 public:
  Probe(const File& file, Backend& backend, const ProbeOptions& options)
      : file_(file),
        backend_(backend),
        options_(options),
        random_(options.seed),
        region_(platform::MappedRegion::allocate(std::max(flight_bytes(options), options.buffer_bytes),
                                                 /*prefault=*/true)),
        begin_ns_(options.now_ns()) {}
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  DriveProbe run() {
    const auto total_ns = static_cast<std::uint64_t>(options_.seconds * 1e9);
    const auto random_ns = static_cast<std::uint64_t>(options_.seconds * (1 - k_sequential_share) * 1e9);
    const std::vector<ProbeRate> cells = combinations();
    std::vector<std::vector<double>> rates(cells.size());
    const std::size_t n_turns = k_n_rounds * cells.size();
    for (std::size_t turn = 0; turn < n_turns; ++turn) {
      const std::uint64_t spent = options_.now_ns() - begin_ns_;
      if (spent >= random_ns) break;  // A slow drive: what is left would only tell the same.
      const std::size_t cell = turn % cells.size();
      rates[cell].push_back(measure(cells[cell], /*in_order=*/false, (random_ns - spent) / (n_turns - turn)));
    }
    for (std::size_t cell = 0; cell < cells.size(); ++cell) {
      if (rates[cell].empty()) continue;
      result_.random.push_back(cells[cell]);
      result_.random.back().bytes_per_second = median(rates[cell]);
    }
    result_.sequential = {fitting_block(options_.sequential_block_bytes), options_.sequential_depth, 0};
    const std::uint64_t spent = options_.now_ns() - begin_ns_;
    if (spent < total_ns)
      result_.sequential.bytes_per_second = measure(result_.sequential, /*in_order=*/true, total_ns - spent);
    return std::move(result_);
  }

 private:
  static std::uint64_t flight_bytes(const ProbeOptions& options) {
    std::uint64_t bytes = std::uint64_t{options.sequential_block_bytes} * options.sequential_depth;
    for (const std::uint32_t block : options.block_bytes) {
      for (const std::uint32_t depth : options.depths) {
        const std::uint64_t flight = std::uint64_t{block} * depth;
        if (flight <= k_max_probe_flight_bytes) bytes = std::max(bytes, flight);
      }
    }
    return bytes;
  }

  std::uint32_t fitting_block(std::uint32_t block) const noexcept {
    const std::uint64_t whole = base::align_down(file_.size_bytes(), file_.alignment_bytes());
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(block, whole));
  }

  std::vector<ProbeRate> combinations() const {
    std::vector<ProbeRate> cells;
    for (const std::uint32_t block : options_.block_bytes) {
      for (const std::uint32_t depth : options_.depths) {
        SLUICE_CHECK(depth >= 1 && depth <= backend_.capacity());
        if (std::uint64_t{block} * depth <= k_max_probe_flight_bytes) cells.push_back({block, depth, 0});
      }
    }
    return cells;
  }

  static double median(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  }

  /// Bytes per second.
  double measure(const ProbeRate& cell, bool in_order, std::uint64_t budget_ns) {
    SLUICE_CHECK(cell.block_bytes != 0 && cell.block_bytes <= file_.size_bytes() &&
                 cell.block_bytes % file_.alignment_bytes() == 0);
    Places places(file_.size_bytes() / cell.block_bytes, in_order, random_);
    ops_.clear();
    queued_.clear();
    std::deque<std::byte*> unused;  ///< Parts of the buffer, the one used longest ago first.
    for (std::size_t at = 0; at + cell.block_bytes <= region_.size(); at += cell.block_bytes)
      unused.push_back(region_.data() + at);
    const auto take_part = [&unused] {
      std::byte* part = unused.front();
      unused.pop_front();
      return part;
    };
    for (std::uint32_t slot = 0; slot < cell.depth; ++slot) {
      ops_.push_back({file_.is_direct() ? file_.direct_fd() : file_.buffered_fd(),
                      places.next() * cell.block_bytes, cell.block_bytes, take_part(), slot});
      queued_.push_back(slot);
    }
    const std::uint64_t begin = options_.now_ns();
    std::uint64_t bytes = 0, n_done = 0, end = begin;
    bool is_over = false;
    while (!is_over) {
      submit_queued();
      collect();
      end = options_.now_ns();
      for (const Completion& done : done_) {
        ReadOp& op = ops_[static_cast<std::size_t>(done.tag)];
        queued_.push_back(static_cast<std::uint32_t>(done.tag));
        if (!take(done, op)) continue;  // Once more.
        bytes += static_cast<std::uint64_t>(done.result);
        ++n_done;
        op.offset = places.next() * cell.block_bytes;
        unused.push_back(op.destination);
        op.destination = take_part();
      }
      is_over = failed_errno_ != 0 || is_cancelled() || (n_done >= cell.depth && end - begin >= budget_ns);
    }
    drain();
    result_.read_bytes += bytes;
    if (is_cancelled()) base::fail(ErrorCode::cancelled, "measuring {} was stopped", file_.path());
    if (failed_errno_ != 0) {
      base::fail(
          ErrorCode::io, "cannot read {} bytes at offset {} of {}: {}", cell.block_bytes, failed_offset_,
          file_.path(),
          failed_errno_ == ENODATA ? "the file ends there (was it cut?)" : std::strerror(failed_errno_));
    }
    return static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<std::uint64_t>(end - begin, 1));
  }

  bool is_cancelled() const noexcept { return options_.cancel != nullptr && options_.cancel->load(); }

  /// Whether the read brought its bytes; notes errors that another try would not mend.
  bool take(const Completion& done, const ReadOp& op) noexcept {
    if (done.result > 0) {
      n_retries_ = 0;
      return true;
    }
    const int error = done.result == 0 ? ENODATA : static_cast<int>(-done.result);
    if ((error == EINTR || error == EAGAIN) && ++n_retries_ <= k_max_retries) return false;
    if (failed_errno_ == 0) failed_offset_ = op.offset;
    failed_errno_ = error;
    return false;
  }

  void submit_queued() {
    batch_.clear();
    for (const std::uint32_t slot : queued_) batch_.push_back(ops_[slot]);
    const std::size_t n = backend_.submit(batch_);
    queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(n));
  }

  void collect() {
    done_.resize(ops_.size());
    done_.resize(backend_.wait(done_, std::min<std::size_t>(backend_.in_flight(), 1)));
  }

  /// Reads in flight write to the buffer: none may be left when a combination ends.
  void drain() {
    while (backend_.in_flight() != 0) collect();
  }

  const File& file_;
  Backend& backend_;
  const ProbeOptions& options_;
  base::SplitMix64 random_;
  platform::MappedRegion region_;
  std::uint64_t begin_ns_;
  DriveProbe result_;
  std::vector<ReadOp> ops_, batch_;
  std::vector<std::uint32_t> queued_;  ///< Slots whose read is to be submitted.
  std::vector<Completion> done_;
  std::uint32_t n_retries_ = 0;  ///< Since the last read that brought bytes.
  int failed_errno_ = 0;
  std::uint64_t failed_offset_ = 0;
};

}  // namespace

DriveProbe probe_drive(const File& file, Backend& backend, const ProbeOptions& options) {
  SLUICE_CHECK(backend.in_flight() == 0);
  return Probe(file, backend, options).run();
}

}  // namespace sluice::storage
