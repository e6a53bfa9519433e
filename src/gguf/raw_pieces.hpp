#pragma once

#include <optional>
#include <string>

#include "gguf/reader.hpp"

namespace sluice::gguf {

/// For a file that is no valid model: says that it is a piece of one that was cut at some byte, as `split`
/// and some uploaders do, and how to join the pieces. Nothing when name or contents speak against it: the
/// first piece is a header whose tensors reach beyond the file, later ones have no magic. Opens the
/// neighbours whose names follow from that of `path`.
std::optional<std::string> describe_raw_piece(const std::string& path, const SourceOpener& open);

}  // namespace sluice::gguf
