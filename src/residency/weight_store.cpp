#include "residency/weight_store.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "residency/zero_check.hpp"

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
                              std::span<const TensorBlock> blocks, MayTake may_take, LoadStep step) {
  SLUICE_CHECK(pinned_.empty());
  const PinnedLayout layout = plan_pinned(tensors, alignment_bytes(), blocks);
  region_ = platform::MappedRegion::allocate(layout.region_bytes, false);
  try {
    read_pieces(layout, may_take, step);
  } catch (...) {
    region_ = platform::MappedRegion();
    throw;
  }
  blocks_ = layout.blocks;
  pinned_.reserve(layout.tensors.size());
  for (std::size_t i = 0; i < layout.tensors.size(); ++i)
    pinned_.emplace_back(layout.tensors[i], layout.tensor_offsets[i]);
  std::sort(pinned_.begin(), pinned_.end());
  for (const gguf::TensorInfo* tensor : layout.tensors) refuse_zeros(*tensor);
}

void WeightStore::refuse_zeros(const gguf::TensorInfo& tensor) const {
  if (zero_rule(tensor) != ZeroRule::no_run) return;
  // A cache line in 64 KiB: some ten milliseconds for 10 GB.
  const auto zeros = find_zeros({find(tensor), tensor.size_bytes}, tensor.size_bytes);
  if (!zeros) return;
  fail_zeros(files_[tensor.shard_idx]->path(), tensor.name, tensor.offset_bytes + zeros->offset_bytes,
             zeros->bytes);
}

void WeightStore::read_pieces(const PinnedLayout& layout, MayTake may_take, LoadStep step) {
  // So large that few requests are needed, so small that reading goes on while pages are taken for the next.
  constexpr std::uint64_t k_piece_bytes = 16 * base::k_mib;
  constexpr std::size_t k_max_pending = 64;
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i < layout.runs.size(); ++i) {
    const PinnedRun& run = layout.runs[i];
    const std::uint64_t bytes =
        std::min(run.window.length, files_[run.shard_idx]->size_bytes() - run.window.offset);
    for (std::uint64_t offset = 0; offset < bytes; offset += k_piece_bytes)
      pieces.push_back({i, offset, std::min(k_piece_bytes, bytes - offset)});
  }
  std::array<storage::ReadResult, 16> results;
  std::size_t n_submitted = 0, n_done = 0;
  // What is in flight writes into the region; what has not begun can be dropped.
  const auto await_all = [&] {
    queue_->cancel_speculative();
    while (n_done < n_submitted) n_done += queue_->wait(results, 1);
  };
  while (n_done < pieces.size()) {
    while (n_submitted < pieces.size() && n_submitted - n_done < k_max_pending) {
      const Piece& piece = pieces[n_submitted];
      try {
        take_memory(region_, layout.runs[piece.run_idx].region_offset + piece.offset, piece.bytes, may_take);
      } catch (const Error&) {
        await_all();
        throw;
      }
      submit(layout, piece, n_submitted++);
    }
    const std::size_t n = queue_->wait(results, 1);
    n_done += n;
    for (const storage::ReadResult& result : std::span(results).first(n)) {
      if (result.error == 0) continue;
      const storage::ReadResult failure = result;
      await_all();
      fail_run(layout, layout.runs[pieces[failure.id].run_idx], failure);
    }
    try {
      step();
    } catch (const Error&) {
      await_all();
      throw;
    }
  }
}

void WeightStore::submit(const PinnedLayout& layout, const Piece& piece, std::uint64_t id) {
  const PinnedRun& run = layout.runs[piece.run_idx];
  const storage::ReadRequest request{files_[run.shard_idx].get(),
                                     run.window.offset + piece.offset,
                                     piece.bytes,
                                     region_.data() + run.region_offset + piece.offset,
                                     id,
                                     storage::Priority::speculative,  // Nothing else is read now.
                                     copy(run.shard_idx)};
  queue_->submit({&request, 1});
}

void WeightStore::fail_run(const PinnedLayout& layout, const PinnedRun& run,
                           const storage::ReadResult& failure) const {
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
  if (!region_.restore_pages(blocks_[block].offset, blocks_[block].bytes)) return false;
  released_bytes_ -= blocks_[block].bytes;
  return true;
}

}  // namespace sluice::residency
