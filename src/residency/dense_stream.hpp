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

/// Some rows of a streamed matrix, read in one go.
struct StreamChunk {
  std::uint32_t tensor = 0;  ///< Index in the list of streamed tensors.
  std::uint32_t first_row = 0;
  std::uint32_t n_rows = 0;
};

/// How a list of matrices is cut into chunks, in the order of their use.
struct StreamLayout {
  std::vector<StreamChunk> chunks;
  std::vector<std::uint32_t> first_chunk;  ///< Per tensor; one more entry ends the last.
};

/// Cuts each tensor into equal chunks of about 1 MiB, in multiples of 16 rows. Pure.
StreamLayout plan_stream(std::span<const gguf::TensorInfo* const> tensors);

/// Bytes of a ring slot that holds any chunk of these tensors with its read window. Pure.
std::uint64_t stream_slot_bytes(std::span<const gguf::TensorInfo* const> tensors,
                                std::uint32_t alignment_bytes);

/// Matrices that do not stay in memory: every pass reads all of them once, in the same order, through a ring
/// of slots. Reading runs ahead of computing by the whole ring, over the end of a pass into the next, so the
/// drive rests only when the ring is full. Used by one thread.
class DenseStream {
 public:
  /// Rows that are in memory until release().
  struct Part {
    std::uint32_t tensor = 0;  ///< Index in the list of streamed tensors.
    std::uint32_t first_row = 0;
    std::uint32_t n_rows = 0;
    const std::byte* data = nullptr;  ///< [n_rows] rows as in the file. Any byte alignment.
  };
  struct Statistics {
    std::uint64_t n_chunks = 0;  ///< Used.
    std::uint64_t stall_ns = 0;  ///< Waited for.
  };

  /// `tensors` in the order of their use, at least one; borrowed, as is `store`, whose files are read. Needs
  /// n_slots >= 2 of stream_slot_bytes() each. Throws Error(budget).
  DenseStream(std::vector<const gguf::TensorInfo*> tensors, std::uint32_t n_slots, const WeightStore& store,
              std::unique_ptr<storage::ReadQueue> queue);
  ~DenseStream();
  DenseStream(const DenseStream&) = delete;
  DenseStream& operator=(const DenseStream&) = delete;

  /// Index of a streamed tensor, or -1.
  int find(const gguf::TensorInfo* tensor) const noexcept;

  /// The next pass begins. After a pass that was not finished, reading starts again at the first tensor.
  void begin_pass();
  /// Up to out.size() parts of the next tensors before `end_tensor` (index in the list), at least one unless
  /// all of them have been handed out; waits for the first. What earlier calls gave out must have been
  /// released. Throws Error(io) naming tensor and offset when its read failed; the pass is then over.
  std::size_t next(std::uint32_t end_tensor, std::span<Part> out);
  /// The parts given out may be overwritten.
  void release();

  /// Keeps the drive busy while something else is computed: hands it what it has room for.
  void pump() { complete(0); }
  /// Waits for the reads under way, so that the counters and the kernel's tell the same.
  void settle();

  const Statistics& statistics() const noexcept { return statistics_; }
  const storage::IoStatistics& io_statistics() const noexcept { return queue_->statistics(); }
  std::vector<storage::DriveStatistics> drive_statistics() const { return queue_->drives(); }
  std::uint64_t ring_bytes() const noexcept { return ring_.size(); }

 private:
  struct Slot {
    bool done = false;
    int error = 0;
    std::uint64_t error_offset = 0;
  };
  /// Chunks are counted on and on: the n-th of all passes is chunk n modulo their number, in slot n modulo
  /// theirs.
  const StreamChunk& chunk_of(std::uint64_t count) const noexcept {
    return layout_.chunks[count % layout_.chunks.size()];
  }
  Slot& slot_of(std::uint64_t count) noexcept { return slots_[count % slots_.size()]; }
  std::uint64_t offset_of(const StreamChunk& chunk) const noexcept;
  void fill();
  void complete(std::size_t min_count);
  void restart();

  std::vector<const gguf::TensorInfo*> tensors_;
  StreamLayout layout_;
  const WeightStore& store_;
  std::uint64_t slot_bytes_ = 0;
  platform::MappedRegion ring_;
  std::vector<Slot> slots_;
  std::uint64_t pass_begin_ = 0;  ///< First chunk of this pass.
  std::uint64_t n_used_ = 0;      ///< Chunks handed out and released.
  std::uint64_t n_held_ = 0;      ///< Handed out since.
  std::uint64_t n_asked_ = 0;     ///< Reads submitted.
  bool failed_ = false;
  Statistics statistics_;
  // Last member: its destructor waits for reads in flight, which write into the ring.
  std::unique_ptr<storage::ReadQueue> queue_;
};

}  // namespace sluice::residency
