#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/byte_source.hpp"
#include "gguf/metadata.hpp"
#include "gguf/types.hpp"

namespace sluice::gguf {

/// One tensor as the file describes it. dims[0] is the contiguous (input) dimension; unused dims are 1.
struct TensorInfo {
  std::string name;
  TensorType type = TensorType::f32;
  std::uint32_t n_dims = 0;
  std::array<std::uint64_t, 4> dims{1, 1, 1, 1};
  std::uint32_t shard_idx = 0;
  std::uint64_t offset_bytes = 0;  ///< From the start of the shard's file.
  std::uint64_t size_bytes = 0;

  std::uint64_t n_elements() const noexcept { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

struct ShardInfo {
  std::string path;
  std::uint64_t file_bytes = 0;
  std::uint64_t data_offset_bytes = 0;  ///< Where the tensor data starts.
};

/// Parsed description of a whole model: the metadata of the first shard and the tensors of all.
struct ModelFile {
  std::uint32_t version = 0;
  std::uint32_t alignment_bytes = 32;
  Metadata metadata;
  std::vector<ShardInfo> shards;
  std::vector<TensorInfo> tensors;  ///< Sorted by shard, then offset.

  const TensorInfo* find_tensor(std::string_view name) const noexcept;  ///< O(log n); valid after parsing.
  std::uint64_t tensor_bytes() const noexcept;

  /// Sorts and builds the name index; called by the parser and by builders. Throws Error(invalid_file) when
  /// two tensors share a name, naming both places.
  void index_tensors();

 private:
  std::vector<std::uint32_t> by_name_;
};

struct ParseOptions {
  /// A file that holds only the header (a partial download, or one cut for planning): tensor extents may then
  /// lie beyond the end of the file.
  bool allow_missing_data = false;
};

/// Parses one file on its own (no shard lookup). Throws Error(invalid_file) for anything that is not a valid
/// GGUF v2/v3 file: the message names the source, the byte offset, what was expected and what was found.
/// Never allocates more than a small multiple of the bytes it has actually read.
ModelFile parse_file(ByteSource& source, const ParseOptions& options = {});

/// Opens a path for reading; throws Error(io).
using SourceOpener = std::function<std::unique_ptr<ByteSource>(const std::string& path)>;

/// Parses a model given by its only file, or by any shard of a split model (NAME-00001-of-00005.gguf): finds
/// and parses all shards and checks that they belong together. Missing, duplicated, foreign and misnumbered
/// shards are named in the error.
ModelFile parse_model(const std::string& path, const SourceOpener& open, const ParseOptions& options = {});

}  // namespace sluice::gguf
