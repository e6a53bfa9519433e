#include "base/text.hpp"

#include <fmt/core.h>

#include <cstdint>

namespace sluice::base {

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

void append_printable(std::string& out, std::string_view& text) {
  const std::size_t n_bytes = utf8_char_bytes(text);
  const auto first = static_cast<std::uint8_t>(text.front());
  // Control characters of two bytes (U+0080 to U+009F) drive terminals as well as the ASCII ones.
  const bool is_c1 = n_bytes == 2 && first == 0xC2 && static_cast<std::uint8_t>(text[1]) < 0xA0;
  const bool is_plain = n_bytes == 1 ? first >= 0x20 && first != 0x7F : n_bytes > 1 && !is_c1;
  if (is_plain) {
    out += text.substr(0, n_bytes);
    text.remove_prefix(n_bytes);
    return;
  }
  if (first == '\n') {
    out += "\\n";
  } else if (first == '\t') {
    out += "\\t";
  } else {
    out += fmt::format("\\x{:02x}", first);
  }
  text.remove_prefix(1);
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) append_printable(out, text);
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    if (text.front() == '\n' || text.front() == '\t') {
      out += text.front();
      text.remove_prefix(1);
    } else {
      append_printable(out, text);
    }
  }
  return out;
}

}  // namespace sluice::base
