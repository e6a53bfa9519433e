#include "residency/weight_store.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"

namespace sluice::residency {

namespace {

void add_tensors(std::span<const gguf::TensorInfo* const> tensors, std::uint32_t alignment_bytes,
                 PinnedLayout& layout) {
  PinnedRun* last = nullptr;
  for (const auto* tensor : tensors) {
    layout.weight_bytes += tensor->size_bytes;
    const auto window = storage::read_window(tensor->offset_bytes, tensor->size_bytes, alignment_bytes);
    // Joined when the windows touch: reading one more block costs less than another read.
    if (last == nullptr || last->shard_idx != tensor->shard_idx ||
        window.offset > last->window.offset + last->window.length) {
      if (last != nullptr) layout.region_bytes += last->window.length;
      layout.runs.push_back({tensor->shard_idx, window, layout.region_bytes});
      last = &layout.runs.back();
    } else {
      last->window.length =
          std::max(last->window.length, window.offset + window.length - last->window.offset);
    }
    layout.tensors.push_back(tensor);
    layout.tensor_offsets.push_back(last->region_offset + (tensor->offset_bytes - last->window.offset));
  }
  if (last != nullptr) layout.region_bytes += last->window.length;
}

}  // namespace

PinnedLayout plan_pinned(std::span<const gguf::TensorInfo* const> tensors, std::uint32_t alignment_bytes,
                         std::span<const TensorBlock> blocks) {
  PinnedLayout layout;
  add_tensors(tensors, alignment_bytes, layout);
  for (TensorBlock block : blocks) {
    // Tensors lie in file order in one array, so their addresses sort as the file does.
    std::sort(block.begin(), block.end());
    const std::uint64_t begin = layout.region_bytes;
    add_tensors(block, alignment_bytes, layout);
    layout.blocks.push_back({begin, layout.region_bytes - begin});
  }
  return layout;
}

WeightStore::WeightStore(std::vector<std::unique_ptr<storage::File>> files,
                         std::unique_ptr<storage::ReadQueue> queue,
                         std::vector<std::unique_ptr<storage::File>> copies)
    : files_(std::move(files)), copies_(std::move(copies)), queue_(std::move(queue)) {
  SLUICE_CHECK(copies_.empty() || copies_.size() == files_.size());
}

WeightStore::~WeightStore() = default;

std::uint32_t WeightStore::alignment_bytes() const noexcept {
  std::uint32_t alignment = 1;
  for (const auto& file : files_) alignment = std::max(alignment, file->alignment_bytes());
  return alignment;
}

void WeightStore::load_pinned(std::span<const gguf::TensorInfo* const> tensors,
                              std::span<const TensorBlock> blocks) {
  SLUICE_CHECK(pinned_.empty());
  const PinnedLayout layout = plan_pinned(tensors, alignment_bytes(), blocks);
  blocks_ = layout.blocks;
  region_ = platform::MappedRegion::allocate(layout.region_bytes, false);
  std::size_t n_submitted = 0, n_done = 0;
  std::array<storage::ReadResult, 16> results;
  constexpr std::size_t k_max_pending = 64;
  std::size_t failed_run = layout.runs.size();
  storage::ReadResult failure;
  while (n_done < layout.runs.size()) {
    while (n_submitted < layout.runs.size() && n_submitted - n_done < k_max_pending) {
      const PinnedRun& run = layout.runs[n_submitted];
      const storage::File& file = *files_[run.shard_idx];
      const std::uint64_t length = std::min(run.window.length, file.size_bytes() - run.window.offset);
      const storage::ReadRequest request{&file,
                                         run.window.offset,
                                         length,
                                         region_.data() + run.region_offset,
                                         n_submitted,
                                         storage::Priority::demand,
                                         copy(run.shard_idx)};
      queue_->submit({&request, 1});
      ++n_submitted;
    }
    const std::size_t n = queue_->wait(results, 1);
    n_done += n;
    for (std::size_t i = 0; i < n; ++i) {
      if (results[i].error != 0) {
        failed_run = results[i].id;
        failure = results[i];
      }
    }
    // After a failure nothing more is started; what is in flight writes into our region, so it is awaited.
    if (failed_run != layout.runs.size()) {
      while (n_done < n_submitted) n_done += queue_->wait(results, 1);
      break;
    }
  }
  if (failed_run != layout.runs.size()) {
    const PinnedRun& run = layout.runs[failed_run];
    const gguf::TensorInfo* culprit = nullptr;
    for (const auto* tensor : layout.tensors) {
      if (tensor->shard_idx == run.shard_idx &&
          tensor->offset_bytes + tensor->size_bytes > failure.error_offset &&
          (culprit == nullptr || tensor->offset_bytes < culprit->offset_bytes)) {
        culprit = tensor;
      }
    }
    base::fail(ErrorCode::io, "{}: reading tensor {} failed at offset {}: {}; check the drive and the file",
               files_[run.shard_idx]->path(), culprit != nullptr ? culprit->name : "?", failure.error_offset,
               std::strerror(failure.error));
  }
  pinned_.reserve(layout.tensors.size());
  for (std::size_t i = 0; i < layout.tensors.size(); ++i)
    pinned_.emplace_back(layout.tensors[i], layout.tensor_offsets[i]);
  std::sort(pinned_.begin(), pinned_.end());
}

const std::byte* WeightStore::find(const gguf::TensorInfo& tensor) const noexcept {
  const auto found =
      std::lower_bound(pinned_.begin(), pinned_.end(), &tensor,
                       [](const auto& entry, const gguf::TensorInfo* key) { return entry.first < key; });
  if (found == pinned_.end() || found->first != &tensor) return nullptr;
  return region_.data() + found->second;
}

void WeightStore::release_block(std::size_t block) noexcept {
  region_.release_pages(blocks_[block].offset, blocks_[block].bytes);
  released_bytes_ += blocks_[block].bytes;
}

bool WeightStore::restore_block(std::size_t block) noexcept {
  if (!region_.restore_pages(blocks_[block].offset, blocks_[block].bytes)) {
    region_.release_pages(blocks_[block].offset, blocks_[block].bytes);
    return false;
  }
  released_bytes_ -= blocks_[block].bytes;
  return true;
}

}  // namespace sluice::residency
