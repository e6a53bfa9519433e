#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "storage/backend.hpp"
#include "storage/file.hpp"

namespace sluice::storage {

/// What to read, and for how long.
struct ProbeOptions {
  /// Multiples of the file's alignment, none larger than the file.
  std::span<const std::uint32_t> block_bytes;
  std::span<const std::uint32_t> depths;  ///< At least 1, none larger than the backend's capacity.
  std::uint32_t sequential_block_bytes = 4u << 20;
  std::uint32_t sequential_depth = 8;
  /// The reads go round a buffer of this size, at least what is in flight. A small one stays in the
  /// processor's caches, to which some drives write faster than to the memory that a model's weights end up
  /// in.
  std::uint64_t buffer_bytes = 0;
  double seconds = 4;  ///< In all, about: what is in flight at the end is waited for.
  std::uint64_t seed = 1;
  const std::atomic<bool>* cancel = nullptr;           ///< Raised by others to end the work.
  std::uint64_t (*now_ns)() noexcept = &base::now_ns;  ///< Tests bring a clock of their own.
};

/// What was delivered by reads of one size with so many in flight.
struct ProbeRate {
  std::uint32_t block_bytes = 0;
  std::uint32_t depth = 0;
  double bytes_per_second = 0;
};

struct DriveProbe {
  std::vector<ProbeRate> random;  ///< By block, then depth; without those there was no time for.
  ProbeRate sequential;           ///< 0 bytes per second when there was no time.
  std::uint64_t read_bytes = 0;   ///< In all.
};

/// Bytes in flight at most; combinations with more are left out, because a slow drive would take seconds to
/// answer them.
inline constexpr std::uint64_t k_max_probe_flight_bytes = std::uint64_t{64} << 20;

/// Reads a file at random places with every combination of block and depth, and then in order from a random
/// place, and tells the rates. All combinations take their turns several times and the median counts, so that
/// a drive that slows down or a neighbour that wakes up does not decide which looks best. Uses the direct
/// descriptor when the file has one. The clock of a combination stops with a completion, while the queue is
/// still full; so the end of one does not count. Only reads. Throws Error: io (naming file and offset),
/// cancelled, budget (no buffer).
DriveProbe probe_drive(const File& file, Backend& backend, const ProbeOptions& options);

}  // namespace sluice::storage
