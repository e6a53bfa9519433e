#include "engine/model/second_copy.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "gguf/shards.hpp"

namespace sluice::engine {
namespace {

namespace fs = std::filesystem;
using storage::File;

constexpr std::uint64_t k_chunk_bytes = 128 * base::k_kib;
constexpr std::uint64_t k_block_bytes = 4 * base::k_kib;
constexpr std::size_t k_max_checked_tensors = 16;

/// Two files side by side, a chunk at a time.
class Comparison {
 public:
  explicit Comparison(std::uint64_t* read_bytes) : read_bytes_(read_bytes) {
    own_.resize(k_chunk_bytes);
    other_.resize(k_chunk_bytes);
  }

  /// The offset of the first byte that differs in [begin, end), or `end`.
  std::uint64_t first_difference(const File& own, const File& other, std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const std::uint64_t n = std::min(k_chunk_bytes, end - begin);
      own.read(begin, own_.data(), n, read_bytes_);
      other.read(begin, other_.data(), n, read_bytes_);
      const auto last = own_.begin() + static_cast<std::ptrdiff_t>(n);
      const auto at = std::mismatch(own_.begin(), last, other_.begin()).first;
      if (at != last) return begin + static_cast<std::uint64_t>(at - own_.begin());
      begin += n;
    }
    return end;
  }

 private:
  std::vector<std::byte> own_, other_;
  std::uint64_t* read_bytes_;
};

void check_shard(const File& own, const File& other) {
  std::error_code unknown;
  if (fs::equivalent(own.path(), other.path(), unknown)) {
    base::fail(ErrorCode::invalid_argument,
               "the second copy {} is the file {} itself; give a copy on another drive", other.path(),
               own.path());
  }
  if (own.size_bytes() != other.size_bytes()) {
    base::fail(ErrorCode::invalid_file,
               "the second copy {} has {} bytes, but {} has {}: it is no copy of it (copy it again)",
               other.path(), other.size_bytes(), own.path(), own.size_bytes());
  }
  if (own.device() == other.device()) {
    base::warn("the second copy {} lies on the drive of {}: it helps when reads fail, but makes none faster",
               other.path(), own.path());
  }
}

}  // namespace

std::vector<std::unique_ptr<File>> open_second_copy(const gguf::ModelFile& model,
                                                    std::span<const std::unique_ptr<File>> shards,
                                                    const fs::path& path, std::uint64_t* read_bytes) {
  const std::vector<std::string> paths = gguf::shard_paths(path.string(), shards.size());
  std::vector<std::unique_ptr<File>> copies;
  Comparison comparison(read_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    File& own = *shards[i];
    copies.push_back(File::open(paths[i], true));
    File& other = *copies.back();
    *read_bytes += other.probe_bytes();
    check_shard(own, other);
    own.widen_alignment(other.alignment_bytes());
    other.widen_alignment(own.alignment_bytes());
    const std::uint64_t header_end = std::min(model.shards[i].data_offset_bytes, own.size_bytes());
    const std::uint64_t at = comparison.first_difference(own, other, 0, header_end);
    if (at != header_end) {
      base::fail(
          ErrorCode::invalid_file,
          "the second copy {} differs from {} at offset {}, in the metadata or the table of tensors: it "
          "is another model or another version of it (copy it again)",
          other.path(), own.path(), at);
    }
  }
  const std::size_t n_tensors = model.tensors.size();
  const std::size_t n_checked = std::min(n_tensors, k_max_checked_tensors);
  for (std::size_t i = 0; i < n_checked; ++i) {
    // The first, the last and some evenly between.
    const auto& tensor = model.tensors[n_checked == 1 ? 0 : i * (n_tensors - 1) / (n_checked - 1)];
    const std::uint64_t end = tensor.offset_bytes + std::min(tensor.size_bytes, k_block_bytes);
    const File &own = *shards[tensor.shard_idx], &other = *copies[tensor.shard_idx];
    const std::uint64_t at = comparison.first_difference(own, other, tensor.offset_bytes, end);
    if (at != end) {
      base::fail(
          ErrorCode::invalid_file,
          "the second copy {} differs from {} at offset {}, in tensor {}: one of them is damaged or has "
          "other weights (copy it again)",
          other.path(), own.path(), at, tensor.name);
    }
  }
  return copies;
}

}  // namespace sluice::engine
