#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gguf/reader.hpp"
#include "platform/memory.hpp"
#include "residency/take_memory.hpp"
#include "storage/file.hpp"
#include "storage/read_queue.hpp"

namespace sluice::residency {

/// A range of a shard that is read in one go because the tensors in it are neighbours.
struct PinnedRun {
  std::uint32_t shard_idx = 0;
  storage::Window window;           ///< Aligned range of the file.
  std::uint64_t region_offset = 0;  ///< Where it lies in the pinned region.
};

/// Tensors of which memory is given back and taken again together.
using TensorBlock = std::vector<const gguf::TensorInfo*>;

/// How a set of tensors is read and where they will lie. Pure.
struct PinnedLayout {
  struct Area {
    std::uint64_t offset = 0, bytes = 0;  ///< In the region.
  };
  std::vector<PinnedRun> runs;
  std::vector<const gguf::TensorInfo*> tensors;  ///< Those outside blocks, then those of each block.
  std::vector<std::uint64_t> tensor_offsets;     ///< Of each of them in the region.
  std::vector<Area> blocks;                      ///< Nothing else lies there.
  std::uint64_t region_bytes = 0;
  std::uint64_t weight_bytes = 0;  ///< Without alignment.
};

/// `tensors` must be sorted by shard and offset (as ModelFile keeps them). None of them may be in `blocks`.
PinnedLayout plan_pinned(std::span<const gguf::TensorInfo* const> tensors, std::uint32_t alignment_bytes,
                         std::span<const TensorBlock> blocks = {});

/// Called again and again while weights are read. May throw an Error, which ends the reading.
using LoadStep = base::FunctionRef<void()>;
inline constexpr auto k_no_load_step = [] {};

/// The open files of a model and the weights that stay in memory: for the whole run, or until their block is
/// given back.
class WeightStore {
 public:
  /// `queue` does all reads of weights, here and in the unit cache. `copies`: none, or a copy of each file
  /// with the same alignment.
  WeightStore(std::vector<std::unique_ptr<storage::File>> files, std::unique_ptr<storage::ReadQueue> queue,
              std::vector<std::unique_ptr<storage::File>> copies = {});
  ~WeightStore();

  const storage::File& file(std::uint32_t shard_idx) const { return *files_[shard_idx]; }
  const storage::File* copy(std::uint32_t shard_idx) const {  ///< Null when there is none.
    return copies_.empty() ? nullptr : copies_[shard_idx].get();
  }
  storage::ReadQueue& queue() noexcept { return *queue_; }
  /// The largest alignment of the files: windows of this are good for all of them.
  std::uint32_t alignment_bytes() const noexcept;

  /// Reads the tensors into the pinned region, those of each block together, and takes memory for them part
  /// by part. Throws Error(io) naming tensor, path and offset, Error(invalid_file) where weights are zero
  /// (zero_check.hpp), Error(budget) when `may_take` refuses, and what `step` or `may_take` throws, of type
  /// Error; nothing is then pinned, and it may be tried again.
  void load_pinned(std::span<const gguf::TensorInfo* const> tensors, std::span<const TensorBlock> blocks,
                   MayTake may_take, LoadStep step = k_no_load_step);
  /// Address of a pinned tensor, or null when it is not pinned. It never changes, but while a block is given
  /// back there is nothing to read at the addresses of its tensors.
  const std::byte* find(const gguf::TensorInfo& tensor) const noexcept;
  std::byte* find(const gguf::TensorInfo& tensor) noexcept {
    return const_cast<std::byte*>(std::as_const(*this).find(tensor));
  }

  std::uint64_t block_bytes(std::size_t block) const noexcept { return blocks_[block].bytes; }
  /// Gives the memory of a block back to the system.
  void release_block(std::size_t block) noexcept;
  /// Takes memory for it again, without its contents, which whoever has them writes there. False, and nothing
  /// changed, when the system refuses.
  bool restore_block(std::size_t block) noexcept;
  std::uint64_t pinned_bytes() const noexcept { return region_.size() - released_bytes_; }

 private:
  /// A part of a run that is read by one request.
  struct Piece {
    std::uint32_t run_idx = 0;
    std::uint64_t offset = 0, bytes = 0;  ///< In the run.
  };
  void read_pieces(const PinnedLayout& layout, MayTake may_take, LoadStep step);
  void submit(const PinnedLayout& layout, const Piece& piece, std::uint64_t id);
  [[noreturn]] void fail_run(const PinnedLayout& layout, const PinnedRun& run,
                             const storage::ReadResult& failure) const;
  void refuse_zeros(const gguf::TensorInfo& tensor) const;

  std::vector<std::unique_ptr<storage::File>> files_, copies_;
  platform::MappedRegion region_;
  std::vector<PinnedLayout::Area> blocks_;
  std::uint64_t released_bytes_ = 0;
  std::vector<std::pair<const gguf::TensorInfo*, std::uint64_t>>
      pinned_;  ///< Sorted by address of the tensor.
  // Last member: its destructor waits for reads in flight, which write into what is above.
  std::unique_ptr<storage::ReadQueue> queue_;
};

}  // namespace sluice::residency
