#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "residency/slot_table.hpp"
#include "residency/unit_map.hpp"
#include "residency/weight_store.hpp"
#include "sluice/error.hpp"

namespace sluice::residency {

/// A unit that could not be read, or whose weights are zero where none can be.
struct UnitFailure {
  std::uint32_t expert = 0;
  ErrorCode code = ErrorCode::io;
  std::string message;  ///< Names file, tensor, offset and cure.
};

/// Reads units from the drive into slots: the read windows of all their parts, as they lie in the file. It
/// knows slots only by their indexes and where they are told to lie.
class UnitReader {
 public:
  /// Borrows everything; all must outlive the reader. Slots have indexes below `n_slots`.
  UnitReader(const gguf::ModelFile& model_file, const UnitMap& map, WeightStore& store, std::size_t n_slots);

  std::size_t n_reading() const noexcept { return n_reading_; }
  /// Whether another unit may be started: the read queue has a limit.
  bool has_room() const noexcept { return n_reading_ < max_reading_; }

  /// Reads a unit into a slot, of which nothing is being read. `memory` has the layer's slot_bytes, aligned
  /// for direct reads. Requires has_room().
  void start(std::uint32_t slot, UnitId unit, std::byte* memory, storage::Priority priority);
  /// A unit that was started as speculative is wanted now.
  void promote(std::uint32_t slot);
  /// Drops what is speculative and has not reached the drive; wait() tells of it as cancelled.
  void cancel_speculative();

  enum class Outcome : std::uint8_t { read, failed, cancelled };
  struct Done {
    std::uint32_t slot = 0;
    Outcome outcome = Outcome::read;
  };
  /// Units whose reads are over, in order of arrival; valid until the next call. Blocks until parts of at
  /// least `min_parts` have arrived, which need not make one unit whole.
  std::span<const Done> wait(std::size_t min_parts);
  /// Why the last read into a slot failed.
  UnitFailure failure(std::uint32_t slot) const;

  /// Where a part's weights start in a slot's memory that holds the unit.
  const std::byte* part(const std::byte* memory, UnitId unit, std::size_t part) const noexcept;

  /// Units read since the last call, and the time in which the drive had something to do for them.
  struct Progress {
    std::uint64_t n_units = 0, busy_ns = 0;
  };
  Progress take_progress() noexcept;

 private:
  /// The last read into a slot.
  struct Read {
    UnitId unit;
    const std::byte* memory = nullptr;
    std::uint64_t error_offset = 0;
    std::uint64_t zero_bytes = 0;
    int error = 0;  ///< Errno, or k_zeros.
    std::uint8_t error_part = 0;
    std::uint8_t n_left = 0;  ///< Parts whose reads are not over.
  };
  static constexpr int k_zeros = -1;
  static constexpr std::size_t k_max_results = 64;

  void refuse_zeros(Read& read) const noexcept;

  const gguf::ModelFile& model_file_;
  const UnitMap& map_;
  WeightStore& store_;
  std::vector<Read> reads_;  ///< Per slot.
  std::size_t max_reading_ = 0, n_reading_ = 0;
  std::array<Done, k_max_results> done_;
  std::uint64_t n_units_read_ = 0, seen_busy_ns_ = 0;
};

}  // namespace sluice::residency
