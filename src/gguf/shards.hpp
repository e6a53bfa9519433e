#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gguf/reader.hpp"

namespace sluice::gguf {

/// What a file says about its place in a split model.
struct SplitKeys {
  std::uint64_t shard_idx = 0;             ///< split.no, from 0.
  std::uint64_t n_shards = 1;              ///< split.count.
  std::optional<std::uint64_t> n_tensors;  ///< split.tensors.count: of the whole model.
};

/// The split keys of one parsed file; nothing for a file that is a whole model (merging tools leave
/// split.count 0 behind). Throws Error(invalid_file) when they contradict themselves or the file.
std::optional<SplitKeys> read_split_keys(const ModelFile& file);

/// Where the `n_shards` files of a model lie of which `path` is one: `path` itself when there is one,
/// whatever its name says, else its siblings by name. Throws Error(invalid_argument) when the name says
/// another number of files.
std::vector<std::string> shard_paths(const std::string& path, std::size_t n_shards);

}  // namespace sluice::gguf
