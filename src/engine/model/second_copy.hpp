#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "gguf/reader.hpp"
#include "storage/file.hpp"

namespace sluice::engine {

/// Opens another copy of a model, given by its only file or by any shard: one file for each of `shards`,
/// which are those of `model`. Sizes and headers must be equal, byte for byte, and so must the first block of
/// some tensors; the error names file, offset and tensor that differ. Both copies then have the same
/// alignment. Adds the bytes read to *read_bytes. Throws Error: io, invalid_file, invalid_argument (it is the
/// same file).
std::vector<std::unique_ptr<storage::File>> open_second_copy(
    const gguf::ModelFile& model, std::span<const std::unique_ptr<storage::File>> shards,
    const std::filesystem::path& path, std::uint64_t* read_bytes);

}  // namespace sluice::engine
