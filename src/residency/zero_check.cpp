#include "residency/zero_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.hpp"
#include "gguf/text.hpp"
#include "residency/roles.hpp"

namespace sluice::residency {
namespace {

constexpr std::size_t k_line_bytes = 64;
constexpr std::uint64_t k_sample_bytes = 4096;
/// A hole says more than zeros do: somebody left it out.
constexpr std::uint64_t k_hole_bytes = 16 * 1024;

bool is_zero(std::span<const std::byte> data) noexcept {
  // Every byte equals its neighbour, and the first is zero.
  return data.empty() ||
         (data[0] == std::byte{0} && std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0);
}

/// Rows that pad a matrix to a round number are zero and lie at its end.
std::uint64_t bytes_before_padding(std::uint64_t part_bytes) noexcept {
  return part_bytes <= k_zero_run_bytes ? part_bytes
                                        : std::max(k_zero_run_bytes, part_bytes - part_bytes / 8);
}

/// Places evenly over the tensor; one place is the middle.
std::uint64_t sample_offset(const gguf::TensorInfo& tensor, std::size_t i, std::size_t n) noexcept {
  const std::uint64_t step = tensor.size_bytes / n;
  return i * step + step / 2;
}

/// One tensor in its file, read in blocks.
class TensorReader {
 public:
  TensorReader(const gguf::TensorInfo& tensor, const storage::File& file, std::uint64_t* read_bytes)
      : tensor_(tensor), file_(file), read_bytes_(read_bytes) {}

  /// Of one expert, or all of the tensor.
  std::uint64_t part_bytes() const noexcept {
    return tensor_.size_bytes / (tensor_.dims[2] * tensor_.dims[3]);
  }

  /// False where the drive cannot read: that is told, or mended by a second copy, when the weights are
  /// needed.
  bool is_zero_at(std::uint64_t offset, std::uint64_t bytes) {
    buffer_.resize(bytes);
    try {
      file_.read(tensor_.offset_bytes + offset, buffer_.data(), bytes, read_bytes_);
    } catch (const Error&) {
      return false;
    }
    return is_zero(buffer_);
  }

  void check_sample(std::uint64_t offset) {
    const std::uint64_t part = part_bytes(), begin = offset / part * part;
    const std::uint64_t end = begin + bytes_before_padding(part);
    offset = std::min(offset, end - 1);
    // One block of the drive in place of two.
    const std::uint64_t in_block = (tensor_.offset_bytes + offset) % k_sample_bytes;
    offset = std::max(begin, offset - std::min(offset, in_block));
    if (!is_zero_at(offset, std::min(k_sample_bytes, end - offset))) return;
    const std::uint64_t run = std::min(k_zero_run_bytes, end - begin);
    const std::uint64_t first = std::min(begin + (offset - begin) / run * run, end - run);
    if (is_zero_at(first, run)) fail({first, run});
  }

  void check_hole(std::uint64_t from, std::uint64_t to) {
    const std::uint64_t part = part_bytes();
    for (std::uint64_t begin = from / part * part; begin < to; begin += part) {
      const std::uint64_t end = begin + bytes_before_padding(part);
      const std::uint64_t first = std::max(from, begin), last = std::min(to, end);
      if (first >= last || last - first < std::min(k_hole_bytes, end - begin)) continue;
      if (is_hole(first, last)) fail({first, last - first});
    }
  }

  /// Embeddings: a hole is a fault unless padding is all there is behind it, or its rows are of no text.
  void check_row_hole(std::uint64_t from, std::uint64_t to, IsTrainedRow is_trained) {
    const bool is_padding = tensor_.size_bytes - to < k_hole_bytes && from >= tensor_.size_bytes / 2;
    if (is_padding || to - from < std::min(k_hole_bytes, tensor_.size_bytes)) return;
    if (has_trained_rows(from, to, is_trained) && is_hole(from, to)) fail({from, to - from});
  }

  void check_row_samples(IsTrainedRow is_trained) {
    constexpr std::size_t k_places = 16;
    std::optional<ZeroRun> zeros;
    for (std::size_t i = 0; i < k_places; ++i) {
      const std::uint64_t offset = sample_offset(tensor_, i, k_places);
      if (!is_zero_at(offset, std::min(k_sample_bytes, tensor_.size_bytes - offset))) {
        // Not padding: weights follow.
        if (zeros) fail(*zeros);
        continue;
      }
      const ZeroRun run{offset, std::min(k_zero_run_bytes, tensor_.size_bytes - offset)};
      if (zeros || !has_trained_rows(offset, offset + run.bytes, is_trained)) continue;
      if (is_zero_at(offset, run.bytes)) zeros = run;
    }
    if (zeros && zeros->offset_bytes < tensor_.size_bytes / 2) fail(*zeros);
  }

  [[noreturn]] void fail(const ZeroRun& run) const {
    fail_zeros(file_.path(), tensor_.name, tensor_.offset_bytes + run.offset_bytes, run.bytes);
  }

 private:
  /// One look, for file systems that call something a hole that is not written back yet.
  bool is_hole(std::uint64_t from, std::uint64_t to) {
    return is_zero_at(from, std::min(k_sample_bytes, to - from));
  }
  /// Half of the whole rows in [from, to), or of the row that it lies in.
  bool has_trained_rows(std::uint64_t from, std::uint64_t to, IsTrainedRow is_trained) const {
    const std::uint64_t row_bytes = gguf::row_bytes(tensor_.type, tensor_.dims[0]);
    std::uint64_t first = (from + row_bytes - 1) / row_bytes, end = to / row_bytes;
    if (first >= end) end = (first = from / row_bytes) + 1;
    std::uint64_t n_trained = 0;
    for (std::uint64_t row = first; row < end; ++row) n_trained += is_trained(row) ? 1 : 0;
    return 2 * n_trained >= end - first;
  }

  const gguf::TensorInfo& tensor_;
  const storage::File& file_;
  std::uint64_t* read_bytes_;
  std::vector<std::byte> buffer_;
};

/// A hole as the file system knows it: the file has no data there and reads as zeros.
void check_hole(const gguf::ModelFile& file, std::uint32_t shard_idx, const storage::File& shard,
                const storage::FileRange& hole, IsTrainedRow is_trained, std::uint64_t* read_bytes) {
  for (const gguf::TensorInfo& tensor : file.tensors) {
    const ZeroRule rule = zero_rule(tensor);
    const std::uint64_t end = tensor.offset_bytes + tensor.size_bytes;
    if (tensor.shard_idx != shard_idx || rule == ZeroRule::allowed || end <= hole.begin ||
        tensor.offset_bytes >= hole.end) {
      continue;
    }
    TensorReader reader(tensor, shard, read_bytes);
    const std::uint64_t from = std::max(hole.begin, tensor.offset_bytes) - tensor.offset_bytes;
    const std::uint64_t to = std::min(hole.end, end) - tensor.offset_bytes;
    if (rule == ZeroRule::no_run) {
      reader.check_hole(from, to);
    } else {
      reader.check_row_hole(from, to, is_trained);
    }
  }
}

}  // namespace

std::optional<ZeroRun> find_zeros(std::span<const std::byte> data, std::size_t max_places) noexcept {
  const std::uint64_t run = std::min<std::uint64_t>(k_zero_run_bytes, data.size());
  if (run == 0) return std::nullopt;
  const std::size_t n_runs = bytes_before_padding(data.size()) / run;
  const std::size_t n_places = std::clamp<std::size_t>(max_places, 1, n_runs);
  for (std::size_t i = 0; i < n_places; ++i) {
    const std::size_t begin = (i * n_runs + n_runs / 2) / n_places * run;
    const auto part = data.subspan(begin, run);
    const std::size_t middle = run / 2;
    if (is_zero(part.subspan(middle, std::min(k_line_bytes, run - middle))) && is_zero(part)) {
      return ZeroRun{begin, run};
    }
  }
  return std::nullopt;
}

ZeroRule zero_rule(const gguf::TensorInfo& tensor) noexcept {
  if (tensor.dims[1] == 1 && tensor.dims[2] == 1) return ZeroRule::allowed;
  if (parse_tensor_name(tensor.name).suffix == "bias") return ZeroRule::allowed;
  switch (classify_tensor(tensor.name)) {
    case Role::token_embedding:
    case Role::output_head:
      return ZeroRule::by_row;
    case Role::attention:
    case Role::router:
    case Role::shared_expert:
    case Role::dense_ffn:
    case Role::expert:
      return ZeroRule::no_run;
    default:
      return ZeroRule::allowed;
  }
}

std::string zeros_message(std::string_view path, std::string_view tensor_name, std::uint64_t file_offset,
                          std::uint64_t bytes) {
  return fmt::format(
      "{}: tensor {}: bytes {} to {} of the file are all zero, which no trained weights are: the download "
      "reserved the space and never wrote it, or the file was damaged later. Download it again, and compare "
      "its checksum with the publisher's",
      path, gguf::printable(tensor_name), file_offset, file_offset + bytes);
}

void fail_zeros(std::string_view path, std::string_view tensor_name, std::uint64_t file_offset,
                std::uint64_t bytes) {
  throw Error(ErrorCode::invalid_file, zeros_message(path, tensor_name, file_offset, bytes));
}

void check_weights(const gguf::ModelFile& file, std::span<const std::unique_ptr<storage::File>> shards,
                   std::size_t n_samples, IsTrainedRow is_trained, std::uint64_t* read_bytes) {
  constexpr std::size_t k_max_holes = 4096;
  for (std::uint32_t shard_idx = 0; shard_idx < shards.size(); ++shard_idx) {
    const storage::File& shard = *shards[shard_idx];
    std::uint64_t from = file.shards[shard_idx].data_offset_bytes;
    for (std::size_t n_holes = 0; n_holes < k_max_holes; ++n_holes) {
      const std::optional<storage::FileRange> hole = shard.next_hole(from);
      if (!hole) break;
      if (hole->end - hole->begin >= k_sample_bytes)
        check_hole(file, shard_idx, shard, *hole, is_trained, read_bytes);
      from = hole->end;
    }
  }
  for (const gguf::TensorInfo& tensor : file.tensors) {
    TensorReader reader(tensor, *shards[tensor.shard_idx], read_bytes);
    const ZeroRule rule = zero_rule(tensor);
    if (rule == ZeroRule::by_row) reader.check_row_samples(is_trained);
    if (rule != ZeroRule::no_run) continue;
    for (std::size_t i = 0; i < n_samples; ++i) reader.check_sample(sample_offset(tensor, i, n_samples));
  }
}

}  // namespace sluice::residency
