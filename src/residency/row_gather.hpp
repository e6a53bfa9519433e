#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gguf/reader.hpp"
#include "platform/memory.hpp"
#include "residency/weight_store.hpp"
#include "storage/read_queue.hpp"

namespace sluice::residency {

/// Rows of a table that stays on the drive, such as the token embeddings of which a token needs one. Used by
/// one thread.
class RowGather {
 public:
  /// Borrows all but the queue. Room for `max_rows` rows at once. Throws Error(budget).
  RowGather(const gguf::TensorInfo& table, const WeightStore& store, std::uint32_t max_rows,
            std::unique_ptr<storage::ReadQueue> queue);
  ~RowGather();
  RowGather(const RowGather&) = delete;
  RowGather& operator=(const RowGather&) = delete;

  /// Memory of a gather of so many rows. Pure.
  static std::uint64_t buffer_bytes(std::uint64_t row_bytes, std::uint32_t max_rows,
                                    std::uint32_t alignment_bytes) noexcept;

  /// Reads rows ids[i] < table rows, at most max_rows; returns them one after the other, valid until the next
  /// call. Throws Error(io) naming tensor and offset.
  const std::byte* gather(std::span<const std::int32_t> ids);

  const storage::IoStatistics& io_statistics() const noexcept { return queue_->statistics(); }
  std::vector<storage::DriveStatistics> drive_statistics() const { return queue_->drives(); }

 private:
  const gguf::TensorInfo& table_;
  const storage::File& file_;
  const storage::File* copy_;
  std::uint64_t row_bytes_ = 0;
  std::uint64_t window_bytes_ = 0;
  std::uint64_t rows_offset_ = 0;  ///< Of the gathered rows, behind the windows.
  platform::MappedRegion buffer_;
  // Last member: its destructor waits for reads in flight, which write into the buffer.
  std::unique_ptr<storage::ReadQueue> queue_;
};

}  // namespace sluice::residency
