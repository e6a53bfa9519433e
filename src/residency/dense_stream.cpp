#include "residency/dense_stream.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"

namespace sluice::residency {
namespace {

// Large enough for the full rate of a drive, small enough that computing starts soon after reading.
constexpr std::uint64_t k_chunk_bytes = 1u << 20;
// Sixteen outputs are one cache line, so two chunks never share one.
constexpr std::uint32_t k_row_step = 16;

std::uint64_t row_bytes_of(const gguf::TensorInfo& tensor) {
  return gguf::row_bytes(tensor.type, tensor.dims[0]);
}

std::uint32_t rows_per_chunk(const gguf::TensorInfo& tensor) {
  const std::uint64_t n_rows = tensor.dims[1];
  const std::uint64_t most = std::max<std::uint64_t>(
      base::align_down(k_chunk_bytes / std::max<std::uint64_t>(row_bytes_of(tensor), 1), k_row_step),
      k_row_step);
  const std::uint64_t n_chunks = (n_rows + most - 1) / most;
  return static_cast<std::uint32_t>(base::align_up((n_rows + n_chunks - 1) / n_chunks, k_row_step));
}

}  // namespace

StreamLayout plan_stream(std::span<const gguf::TensorInfo* const> tensors,
                         const std::vector<bool>& streamed) {
  StreamLayout layout;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    layout.first_chunk.push_back(static_cast<std::uint32_t>(layout.chunks.size()));
    if (!streamed.empty() && !streamed[i]) continue;
    const auto n_rows = static_cast<std::uint32_t>(tensors[i]->dims[1]);
    const std::uint32_t step = rows_per_chunk(*tensors[i]);
    for (std::uint32_t row = 0; row < n_rows; row += step)
      layout.chunks.push_back({i, row, std::min(step, n_rows - row)});
  }
  layout.first_chunk.push_back(static_cast<std::uint32_t>(layout.chunks.size()));
  return layout;
}

std::uint64_t stream_slot_bytes(std::span<const gguf::TensorInfo* const> tensors,
                                std::uint32_t alignment_bytes) {
  std::uint64_t bytes = 0;
  for (const auto* tensor : tensors) {
    const std::uint64_t rows = std::min<std::uint64_t>(rows_per_chunk(*tensor), tensor->dims[1]);
    // Wherever it lies, the enclosing window passes it by less than one block on either side.
    bytes = std::max(bytes, base::align_up(rows * row_bytes_of(*tensor), alignment_bytes) + alignment_bytes);
  }
  return bytes;
}

DenseStream::DenseStream(std::vector<const gguf::TensorInfo*> tensors, std::uint32_t n_slots,
                         const WeightStore& store, std::unique_ptr<storage::ReadQueue> queue,
                         std::vector<bool> streamed)
    : tensors_(std::move(tensors)),
      streamed_(streamed.empty() ? std::vector<bool>(tensors_.size(), true) : std::move(streamed)),
      keeps_(tensors_.size()),
      layout_(plan_stream(tensors_, streamed_)),
      store_(store),
      slot_bytes_(stream_slot_bytes(tensors_, store.alignment_bytes())),
      ring_(platform::MappedRegion::allocate(n_slots * slot_bytes_, false)),
      slots_(n_slots),
      queue_(std::move(queue)) {
  SLUICE_CHECK(streamed_.size() == tensors_.size() && n_slots >= 2);
  // No pass has more chunks, so that the counts at which passes begin stay positive whatever changes.
  origin_ = pass_begin_ = n_used_ = n_asked_ = plan_stream(tensors_).chunks.size();
}

DenseStream::~DenseStream() = default;

void DenseStream::take_ring(MayTake may_take) {
  if (is_streaming()) take_memory(ring_, 0, ring_.size(), may_take);
}

int DenseStream::find(const gguf::TensorInfo* tensor) const noexcept {
  const auto found = std::find(tensors_.begin(), tensors_.end(), tensor);
  return tensor == nullptr || found == tensors_.end() ? -1 : static_cast<int>(found - tensors_.begin());
}

std::uint64_t DenseStream::offset_of(const StreamChunk& chunk) const noexcept {
  const gguf::TensorInfo& tensor = *tensors_[chunk.tensor];
  return tensor.offset_bytes + chunk.first_row * row_bytes_of(tensor);
}

void DenseStream::begin_pass() {
  n_used_ += std::exchange(n_held_, 0);
  const std::uint64_t n_of_pass = n_used_ - pass_begin_;
  if (failed_ || (n_of_pass != 0 && n_of_pass != layout_.chunks.size())) restart();
  pass_begin_ = n_used_;
  fill();
}

void DenseStream::restart() {
  queue_->cancel_speculative();
  wait_for_reads();
  failed_ = false;
  origin_ = n_used_ = n_asked_;
}

std::uint64_t DenseStream::count_same(const StreamLayout& layout, std::uint64_t at) noexcept {
  std::uint64_t n = 0;
  if (layout.chunks.empty()) return 0;
  for (; n_used_ + n < n_asked_; ++n) {
    const StreamChunk& before = chunk_of(n_used_ + n);
    const StreamChunk& now = layout.chunks[(at + n) % layout.chunks.size()];
    if (before.tensor != now.tensor || before.first_row != now.first_row) break;
    if (slot_of(n_used_ + n).error == ECANCELED) break;
  }
  return n;
}

void DenseStream::set_streamed(std::vector<bool> streamed, std::uint32_t next_tensor) {
  SLUICE_CHECK(n_held_ == 0 && !failed_ && streamed.size() == tensors_.size());
  StreamLayout layout = plan_stream(tensors_, streamed);
  const std::uint64_t at = layout.first_chunk[next_tensor];
  std::uint64_t n_same = count_same(layout, at);
  if (n_used_ + n_same != n_asked_) {
    // A slot whose read is under way cannot be used for another.
    queue_->cancel_speculative();
    wait_for_reads();
    n_same = count_same(layout, at);
  }
  n_asked_ = n_used_ + n_same;
  origin_ = pass_begin_ = n_used_ - at;
  const bool was_streaming = is_streaming();
  streamed_ = std::move(streamed);
  layout_ = std::move(layout);
  if (was_streaming && !is_streaming()) ring_.release_pages(0, ring_.size());
  // Should the system refuse, pages come one by one as reads touch them.
  if (!was_streaming && is_streaming()) ring_.restore_pages(0, ring_.size());
  fill();
}

void DenseStream::wait_for_reads() {
  while (queue_->n_pending() != 0) complete(1);
}

void DenseStream::fill() {
  if (!is_streaming()) return;
  std::array<storage::ReadRequest, 32> requests;
  std::size_t n = 0;
  for (; n_asked_ < n_used_ + slots_.size(); ++n_asked_) {
    if (n == requests.size()) {
      queue_->submit(requests);
      n = 0;
    }
    const StreamChunk& chunk = chunk_of(n_asked_);
    const gguf::TensorInfo& tensor = *tensors_[chunk.tensor];
    const std::uint64_t slot = n_asked_ % slots_.size();
    slots_[slot] = {};
    // Speculative: what is queued can be dropped when a pass is given up.
    requests[n++] = {&store_.file(tensor.shard_idx),
                     offset_of(chunk),
                     chunk.n_rows * row_bytes_of(tensor),
                     ring_.data() + slot * slot_bytes_,
                     slot,
                     storage::Priority::speculative,
                     store_.copy(tensor.shard_idx)};
  }
  queue_->submit(std::span(requests).first(n));
}

void DenseStream::complete(std::size_t min_count) {
  std::array<storage::ReadResult, 64> results;
  const std::size_t n = queue_->wait(results, min_count);
  for (std::size_t i = 0; i < n; ++i)
    slots_[results[i].id] = {true, results[i].error, results[i].error_offset};
}

std::size_t DenseStream::next(std::uint32_t end_tensor, std::span<Part> out) {
  SLUICE_CHECK(n_held_ == 0 && !failed_ && end_tensor <= tensors_.size());
  const std::uint64_t end = pass_begin_ + layout_.first_chunk[end_tensor];
  if (n_used_ >= end) return 0;
  complete(0);
  if (!slot_of(n_used_).done) {
    const std::uint64_t start = base::now_ns();
    while (!slot_of(n_used_).done) complete(1);
    statistics_.stall_ns += base::now_ns() - start;
  }
  while (n_held_ < out.size() && n_used_ + n_held_ < std::min(end, n_asked_)) {
    const std::uint64_t count = n_used_ + n_held_;
    const Slot& slot = slot_of(count);
    if (!slot.done) break;
    const StreamChunk& chunk = chunk_of(count);
    const gguf::TensorInfo& tensor = *tensors_[chunk.tensor];
    const storage::File& file = store_.file(tensor.shard_idx);
    if (slot.error != 0) {
      if (n_held_ != 0) break;  // What came before it is still good.
      failed_ = true;
      base::fail(ErrorCode::io, "{}: reading tensor {} failed at offset {}: {}; check the drive and the file",
                 file.path(), tensor.name, slot.error_offset, std::strerror(slot.error));
    }
    const std::span data(data_of(count), chunk.n_rows * row_bytes_of(tensor));
    if (const auto zeros = zeros_in(chunk, data)) {
      if (n_held_ != 0) break;
      failed_ = true;
      fail_zeros(file.path(), tensor.name, offset_of(chunk) + zeros->offset_bytes, zeros->bytes);
    }
    out[n_held_++] = {chunk.tensor, chunk.first_row, chunk.n_rows, data_of(count)};
  }
  statistics_.n_chunks += n_held_;
  return n_held_;
}

std::optional<ZeroRun> DenseStream::zeros_in(const StreamChunk& chunk,
                                             std::span<const std::byte> data) const noexcept {
  constexpr std::size_t k_max_places = 4;
  const gguf::TensorInfo& tensor = *tensors_[chunk.tensor];
  // A small chunk of a larger matrix may be zero by chance of training, and padding is at the end.
  const bool is_telling = data.size() >= k_zero_run_bytes || chunk.n_rows == tensor.dims[1];
  const bool is_end =
      chunk.n_rows != tensor.dims[1] && chunk.first_row + chunk.n_rows > tensor.dims[1] / 8 * 7;
  return !is_telling || is_end ? std::nullopt : find_zeros(data, k_max_places);
}

const std::byte* DenseStream::data_of(std::uint64_t count) const noexcept {
  const StreamChunk& chunk = chunk_of(count);
  const std::uint32_t alignment = store_.file(tensors_[chunk.tensor]->shard_idx).alignment_bytes();
  return ring_.data() + (count % slots_.size()) * slot_bytes_ +
         storage::place_in_window(offset_of(chunk), alignment);
}

void DenseStream::release() {
  for (std::uint64_t count = n_used_; count < n_used_ + n_held_; ++count) {
    const StreamChunk& chunk = chunk_of(count);
    Keep& keep = keeps_[chunk.tensor];
    if (keep.to == nullptr) continue;
    const std::uint64_t row_bytes = row_bytes_of(*tensors_[chunk.tensor]);
    std::memcpy(keep.to + chunk.first_row * row_bytes, data_of(count), chunk.n_rows * row_bytes);
    // A pass hands out all chunks of a tensor in order, or ends.
    if (chunk.first_row + chunk.n_rows == tensors_[chunk.tensor]->dims[1]) keep.is_whole = true;
  }
  n_used_ += std::exchange(n_held_, 0);
  fill();
}

}  // namespace sluice::residency
