#pragma once

#include <string>

#include "gguf/byte_source.hpp"

namespace sluice::gguf {

/// Says what a file that does not start with the GGUF magic seems to be, and what to do about it: a sentence
/// for an error message. Reads at most the first 512 bytes.
std::string describe_foreign_file(ByteSource& source);

}  // namespace sluice::gguf
