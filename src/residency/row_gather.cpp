#include "residency/row_gather.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"

namespace sluice::residency {
namespace {

// Enough for the full rate of a drive's small random reads.
constexpr std::size_t k_n_windows = 32;

std::uint64_t window_bytes(std::uint64_t row_bytes, std::uint32_t alignment_bytes) noexcept {
  return base::align_up(row_bytes, alignment_bytes) + alignment_bytes;
}

}  // namespace

std::uint64_t RowGather::buffer_bytes(std::uint64_t row_bytes, std::uint32_t max_rows,
                                      std::uint32_t alignment_bytes) noexcept {
  return k_n_windows * window_bytes(row_bytes, alignment_bytes) + max_rows * row_bytes;
}

RowGather::RowGather(const gguf::TensorInfo& table, const WeightStore& store, std::uint32_t max_rows,
                     std::unique_ptr<storage::ReadQueue> queue)
    : table_(table),
      file_(store.file(table.shard_idx)),
      copy_(store.copy(table.shard_idx)),
      row_bytes_(gguf::row_bytes(table.type, table.dims[0])),
      window_bytes_(window_bytes(row_bytes_, store.alignment_bytes())),
      rows_offset_(k_n_windows * window_bytes_),
      buffer_(platform::MappedRegion::allocate(buffer_bytes(row_bytes_, max_rows, store.alignment_bytes()),
                                               false)),
      queue_(std::move(queue)) {}

RowGather::~RowGather() = default;

const std::byte* RowGather::gather(std::span<const std::int32_t> ids) {
  SLUICE_CHECK(rows_offset_ + ids.size() * row_bytes_ <= buffer_.size());
  std::array<std::size_t, k_n_windows> row_of_window{};
  std::array<std::size_t, k_n_windows> free_windows{};
  std::size_t n_free = k_n_windows, n_asked = 0, n_done = 0;
  for (std::size_t i = 0; i < k_n_windows; ++i) free_windows[i] = i;
  const auto offset_of = [&](std::size_t row) {
    return table_.offset_bytes + static_cast<std::uint64_t>(ids[row]) * row_bytes_;
  };
  storage::ReadResult failure;
  while (n_done < n_asked || (n_asked < ids.size() && failure.error == 0)) {
    std::array<storage::ReadRequest, k_n_windows> requests;
    std::size_t n = 0;
    while (n_free != 0 && n_asked < ids.size() && failure.error == 0) {
      const std::size_t window = free_windows[--n_free];
      row_of_window[window] = n_asked;
      requests[n++] = {&file_, offset_of(n_asked),        row_bytes_, buffer_.data() + window * window_bytes_,
                       window, storage::Priority::demand, copy_};
      ++n_asked;
    }
    queue_->submit(std::span(requests).first(n));
    std::array<storage::ReadResult, k_n_windows> results;
    const std::size_t n_results = queue_->wait(results, 1);
    n_done += n_results;
    for (const storage::ReadResult& result : std::span(results).first(n_results)) {
      free_windows[n_free++] = result.id;
      if (result.error != 0) {
        failure = result;
        continue;
      }
      const std::size_t row = row_of_window[result.id];
      const std::uint64_t inside = storage::place_in_window(offset_of(row), file_.alignment_bytes());
      std::memcpy(buffer_.data() + rows_offset_ + row * row_bytes_,
                  buffer_.data() + result.id * window_bytes_ + inside, row_bytes_);
    }
  }
  if (failure.error != 0) {
    base::fail(ErrorCode::io, "{}: reading tensor {} failed at offset {}: {}; check the drive and the file",
               file_.path(), table_.name, failure.error_offset, std::strerror(failure.error));
  }
  return buffer_.data() + rows_offset_;
}

}  // namespace sluice::residency
