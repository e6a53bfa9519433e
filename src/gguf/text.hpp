#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/text.hpp"

namespace sluice::gguf {

using base::is_valid_utf8;
using base::utf8_char_bytes;

/// Text from a file made safe to stand between quotes in a message or on a terminal: base::printable() with
/// quotes and backslashes escaped, and "..." for whatever does not fit `max_bytes`.
std::string printable(std::string_view text, std::size_t max_bytes = 80);

}  // namespace sluice::gguf
