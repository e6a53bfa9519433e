#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gguf/reader.hpp"
#include "platform/memory.hpp"
#include "residency/weight_store.hpp"
#include "residency/zero_check.hpp"
#include "storage/read_queue.hpp"

namespace sluice::residency {

/// Some rows of a streamed matrix, read in one go.
struct StreamChunk {
  std::uint32_t tensor = 0;  ///< Index in the list of tensors.
  std::uint32_t first_row = 0;
  std::uint32_t n_rows = 0;
};

/// How a list of matrices is cut into chunks, in the order of their use.
struct StreamLayout {
  std::vector<StreamChunk> chunks;
  std::vector<std::uint32_t> first_chunk;  ///< Per tensor; one more entry ends the last.
};

/// Cuts each tensor into equal chunks of about 1 MiB, in multiples of 16 rows. Those that `streamed` says no
/// of have none; when it is empty all of them are streamed. Pure.
StreamLayout plan_stream(std::span<const gguf::TensorInfo* const> tensors,
                         const std::vector<bool>& streamed = {});

/// Bytes of a ring slot that holds any chunk of these tensors with its read window. Pure.
std::uint64_t stream_slot_bytes(std::span<const gguf::TensorInfo* const> tensors,
                                std::uint32_t alignment_bytes);

/// Matrices that do not stay in memory: every pass reads all of them once, in the same order, through a ring
/// of slots. Reading runs ahead of computing by the whole ring, over the end of a pass into the next, so the
/// drive rests only when the ring is full. Which matrices of its list are streamed may change while a pass is
/// under way. Used by one thread.
class DenseStream {
 public:
  /// Rows that are in memory until release().
  struct Part {
    std::uint32_t tensor = 0;  ///< Index in the list of tensors.
    std::uint32_t first_row = 0;
    std::uint32_t n_rows = 0;
    const std::byte* data = nullptr;  ///< [n_rows] rows as in the file. Any byte alignment.
  };
  struct Statistics {
    std::uint64_t n_chunks = 0;  ///< Used.
    std::uint64_t stall_ns = 0;  ///< Waited for.
  };

  /// `tensors`: all that are or may be streamed, in the order of their use; borrowed, as is `store`, whose
  /// files are read. `streamed` as for plan_stream(); while none is, the ring takes no memory. Needs
  /// n_slots >= 2 of stream_slot_bytes() each. Throws Error(budget).
  DenseStream(std::vector<const gguf::TensorInfo*> tensors, std::uint32_t n_slots, const WeightStore& store,
              std::unique_ptr<storage::ReadQueue> queue, std::vector<bool> streamed = {});
  ~DenseStream();
  DenseStream(const DenseStream&) = delete;
  DenseStream& operator=(const DenseStream&) = delete;

  /// Takes the memory of the ring, if anything is streamed, part by part; else it comes as it is used. Throws
  /// Error(budget).
  void take_ring(MayTake may_take);
  /// Index of a tensor in the list, or -1.
  int find(const gguf::TensorInfo* tensor) const noexcept;
  bool is_streamed(std::uint32_t tensor) const noexcept { return streamed_[tensor]; }
  /// Whether any of them is.
  bool is_streaming() const noexcept { return !layout_.chunks.empty(); }
  /// From now on these are streamed. The pass under way has used the tensors before `next_tensor` and none
  /// behind it. What was read ahead is kept as far as it is still what comes next. The ring takes memory with
  /// the first of them and gives it back with the last.
  void set_streamed(std::vector<bool> streamed, std::uint32_t next_tensor);
  /// From the next chunk on, release() copies the rows of a tensor to `to` too; null ends it.
  void keep(std::uint32_t tensor, std::byte* to) { keeps_[tensor] = {to, false}; }
  /// Whether all rows of the tensor have been copied since keep().
  bool is_kept(std::uint32_t tensor) const noexcept { return keeps_[tensor].is_whole; }

  /// The next pass begins. After a pass that was not finished, reading starts again at the first tensor.
  void begin_pass();
  /// Up to out.size() parts of the next streamed tensors before `end_tensor` (an index), at least one unless
  /// all of them have been handed out; waits for the first. What earlier calls gave out must have been
  /// released. Throws Error(io) naming tensor and offset when its read failed; the pass is then over.
  std::size_t next(std::uint32_t end_tensor, std::span<Part> out);
  /// The parts given out may be overwritten.
  void release();

  /// Keeps the drive busy while something else is computed: hands it what it has room for.
  void pump() { complete(0); }
  /// Waits for the reads under way, so that the counters and the kernel's tell the same.
  void wait_for_reads();

  const Statistics& statistics() const noexcept { return statistics_; }
  const storage::IoStatistics& io_statistics() const noexcept { return queue_->statistics(); }
  std::vector<storage::DriveStatistics> drive_statistics() const { return queue_->drives(); }
  std::uint64_t ring_bytes() const noexcept { return ring_.size(); }  ///< When it has memory.

 private:
  struct Slot {
    bool done = false;
    int error = 0;
    std::uint64_t error_offset = 0;
  };
  struct Keep {
    std::byte* to = nullptr;
    bool is_whole = false;
  };
  /// Chunks are counted on and on, over the ends of passes: the n-th since `origin_` is chunk n modulo their
  /// number; the slot of a count is the count modulo the slots' number.
  const StreamChunk& chunk_of(std::uint64_t count) const noexcept {
    return layout_.chunks[(count - origin_) % layout_.chunks.size()];
  }
  Slot& slot_of(std::uint64_t count) noexcept { return slots_[count % slots_.size()]; }
  const std::byte* data_of(std::uint64_t count) const noexcept;
  std::optional<ZeroRun> zeros_in(const StreamChunk& chunk, std::span<const std::byte> data) const noexcept;
  std::uint64_t offset_of(const StreamChunk& chunk) const noexcept;
  void fill();
  void complete(std::size_t min_count);
  void restart();
  /// How many chunks of those asked for are what `layout` wants next, from its chunk `at` on.
  std::uint64_t count_same(const StreamLayout& layout, std::uint64_t at) noexcept;

  std::vector<const gguf::TensorInfo*> tensors_;
  std::vector<bool> streamed_;  ///< Per tensor.
  std::vector<Keep> keeps_;     ///< Per tensor.
  StreamLayout layout_;
  const WeightStore& store_;
  std::uint64_t slot_bytes_ = 0;
  platform::MappedRegion ring_;
  std::vector<Slot> slots_;
  std::uint64_t origin_ = 0;
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
