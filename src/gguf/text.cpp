#include "gguf/text.hpp"

#include <fmt/core.h>

#include <cstdint>

namespace sluice::gguf {

std::size_t utf8_char_bytes(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const auto byte_at = [&text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte_at(0);
  if (lead < 0x80) return 1;
  const std::size_t n_bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < n_bytes) return 0;
  for (std::size_t i = 1; i < n_bytes; ++i) {
    if ((byte_at(i) & 0xC0) != 0x80) return 0;
  }
  // The second byte decides the cases that the lead byte alone cannot: overlong, surrogate, too large.
  const std::uint8_t second = byte_at(1);
  if (lead == 0xE0 && second < 0xA0) return 0;
  if (lead == 0xED && second > 0x9F) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return n_bytes;
}

bool is_valid_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t n_bytes = utf8_char_bytes(text);
    if (n_bytes == 0) return false;
    text.remove_prefix(n_bytes);
  }
  return true;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view k_cut = "...";
  std::string result;
  std::size_t fits_with_cut = 0;  // The longest prefix of `result` that leaves room for the dots.
  while (!text.empty()) {
    const std::size_t n_bytes = utf8_char_bytes(text);
    const auto first = static_cast<std::uint8_t>(text.front());
    // C1 control characters (U+0080-U+009F) drive terminals as well as the ASCII ones.
    const bool is_c1 = n_bytes == 2 && first == 0xC2 && static_cast<std::uint8_t>(text[1]) < 0xA0;
    if (n_bytes > 1 && !is_c1) {
      result += text.substr(0, n_bytes);
      text.remove_prefix(n_bytes);
    } else {
      if (first == '\n') {
        result += "\\n";
      } else if (first == '\t') {
        result += "\\t";
      } else if (first == '"' || first == '\\') {
        result += '\\';
        result += static_cast<char>(first);
      } else if (first >= 0x20 && first < 0x7F) {
        result += static_cast<char>(first);
      } else {
        result += fmt::format("\\x{:02x}", first);
      }
      text.remove_prefix(1);
    }
    if (result.size() > max_bytes) {
      result.resize(fits_with_cut);
      return max_bytes < k_cut.size() ? std::string(k_cut.substr(0, max_bytes)) : result.append(k_cut);
    }
    if (result.size() + k_cut.size() <= max_bytes) fits_with_cut = result.size();
  }
  return result;
}

}  // namespace sluice::gguf
