#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::gguf {

/// Length of the well-formed UTF-8 character at the start of `text` (1-4), or 0 when there is none: overlong
/// forms, surrogates and values above U+10FFFF are malformed.
std::size_t utf8_char_bytes(std::string_view text) noexcept;

bool is_valid_utf8(std::string_view text) noexcept;

/// Text from a file made safe for a message or a terminal: control characters and malformed UTF-8 become
/// \xNN, quotes and backslashes are escaped, and whatever does not fit `max_bytes` is replaced by "...".
std::string printable(std::string_view text, std::size_t max_bytes = 80);

}  // namespace sluice::gguf
