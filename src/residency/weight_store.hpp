#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gguf/reader.hpp"
#include "platform/memory.hpp"
#include "storage/file.hpp"
#include "storage/read_queue.hpp"

namespace sluice::residency {

/// A range of a shard that is read in one go because the tensors in it are neighbours.
struct PinnedRun {
  std::uint32_t shard_idx = 0;
  storage::Window window;           ///< Aligned range of the file.
  std::uint64_t region_offset = 0;  ///< Where it lies in the pinned region.
};

/// How a set of tensors is read and where they will lie. Pure.
struct PinnedLayout {
  std::vector<PinnedRun> runs;
  std::vector<std::uint64_t> tensor_offsets;  ///< Per tensor of the list: offset in the region.
  std::uint64_t region_bytes = 0;
  std::uint64_t weight_bytes = 0;  ///< Without alignment.
};

/// `tensors` must be sorted by shard and offset (as ModelFile keeps them).
PinnedLayout plan_pinned(std::span<const gguf::TensorInfo* const> tensors, std::uint32_t alignment_bytes);

/// The open files of a model and the weights that stay in memory for the whole run.
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

  /// Reads the tensors into the pinned region. Throws Error(io) naming tensor, path and offset.
  void load_pinned(std::span<const gguf::TensorInfo* const> tensors);
  /// Address of a pinned tensor, or null when it is not pinned.
  const std::byte* find(const gguf::TensorInfo& tensor) const noexcept;
  std::uint64_t pinned_bytes() const noexcept { return region_.size(); }

 private:
  std::vector<std::unique_ptr<storage::File>> files_, copies_;
  platform::MappedRegion region_;
  std::vector<std::pair<const gguf::TensorInfo*, std::uint64_t>>
      pinned_;  ///< Sorted by address of the tensor.
  // Last member: its destructor waits for reads in flight, which write into what is above.
  std::unique_ptr<storage::ReadQueue> queue_;
};

}  // namespace sluice::residency
