#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::base {

/// Length of the well-formed UTF-8 character at the start of `text` (1-4), or 0 when there is none: overlong
/// forms, surrogates and values above U+10FFFF are malformed.
std::size_t utf8_char_bytes(std::string_view text) noexcept;

bool is_valid_utf8(std::string_view text) noexcept;

/// Takes the first character of `text`, which must not be empty, away and appends it to `out` in a form that
/// is safe on a terminal. Control characters (U+0000 to U+001F, U+007F to U+009F) and malformed UTF-8 could
/// move the cursor, set the clipboard or worse; they become \n, \t or \xNN.
void append_printable(std::string& out, std::string_view& text);

/// All of a text in that form. It is one line.
std::string printable(std::string_view text);

/// The same, but newlines and tabs stay as they are: for text of several lines.
std::string printable_lines(std::string_view text);

}  // namespace sluice::base
