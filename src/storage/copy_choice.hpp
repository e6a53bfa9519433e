#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::storage {

/// Follows the reads of one drive: what it still owes and how fast it delivered of late. Times are
/// nanoseconds of any one clock and never go back.
class DriveMeter {
 public:
  void start(std::uint64_t bytes, std::uint64_t now_ns) noexcept;
  /// A read of `bytes` ended and brought `delivered` of them.
  void finish(std::uint64_t bytes, std::uint64_t delivered, std::uint64_t now_ns) noexcept;
  /// A read that was started was not taken after all.
  void retract(std::uint64_t bytes) noexcept;

  std::uint64_t outstanding_bytes() const noexcept { return outstanding_bytes_; }
  std::uint64_t read_bytes() const noexcept { return read_bytes_; }
  std::uint64_t busy_ns() const noexcept { return busy_ns_; }
  /// While reads were outstanding, over the last 64 to 128 MiB; 0 while less than 1 MiB has come.
  double bytes_per_second() const noexcept;

 private:
  std::uint64_t outstanding_bytes_ = 0, read_bytes_ = 0, busy_ns_ = 0;
  std::uint64_t seen_ns_ = 0;  ///< Time up to which busy_ns_ counts, while something is outstanding.
  std::uint64_t recent_bytes_ = 0, recent_ns_ = 0;
};

/// One of two copies a read may come from.
struct CopyState {
  std::uint64_t outstanding_bytes = 0;
  double bytes_per_second = 0;      ///< 0: not known.
  std::uint64_t n_passed_over = 0;  ///< Reads given to the other copy since this one had its last.
  bool is_failing = false;
};

/// After so many reads in a row for one copy the other gets one, or it would be judged for ever by how it
/// once was.
constexpr std::uint64_t k_max_passed_over = 4096;

/// The copy (0 or 1) that will probably have `bytes` more first: the one with less to do, by its rate. One of
/// unknown rate counts as fast as the other; a failing one is taken only when both are.
std::size_t choose_copy(const CopyState& first, const CopyState& second, std::uint64_t bytes) noexcept;

}  // namespace sluice::storage
