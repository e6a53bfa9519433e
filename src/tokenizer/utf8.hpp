#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::tokenizer {

enum class Utf8Kind : std::uint8_t {
  valid,       ///< `length` bytes are one character.
  invalid,     ///< `length` bytes can never become a character.
  incomplete,  ///< The text ends inside what may still become a character.
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::invalid;
  std::uint32_t length = 1;
  char32_t code_point = 0;  ///< Only for valid.
};

/// Looks at the character that starts at `pos` (which must be inside the text). Overlong forms, surrogates
/// and values above U+10FFFF are invalid. `length` of a broken character is its longest prefix that could
/// have begun a valid one (Unicode's "maximal subpart"), so each broken character gives one replacement
/// character however the bytes arrive.
Utf8Step utf8_step(std::string_view text, std::size_t pos) noexcept;

/// Appends a character. `code_point` must be a valid scalar value.
void append_utf8(std::string& out, char32_t code_point);

/// How many bytes from `pos` on are complete valid characters.
std::size_t valid_utf8_prefix(std::string_view text, std::size_t pos) noexcept;

inline constexpr std::string_view k_replacement_character = "\xEF\xBF\xBD";

}  // namespace sluice::tokenizer
