#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {

Utf8Step utf8_step(std::string_view text, std::size_t pos) noexcept {
  const auto byte_at = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned lead = byte_at(pos);
  if (lead < 0x80) return {Utf8Kind::valid, 1, lead};
  // Table 3-7 of the Unicode standard: only the second byte has a range that depends on the first.
  std::uint32_t n_bytes = 0;
  unsigned low = 0x80, high = 0xBF;
  char32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    n_bytes = 2;
    value = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    n_bytes = 3;
    value = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    n_bytes = 4;
    value = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Kind::invalid, 1, 0};
  }
  for (std::uint32_t i = 1; i < n_bytes; ++i) {
    if (pos + i >= text.size()) return {Utf8Kind::incomplete, i, 0};
    const unsigned byte = byte_at(pos + i);
    if (byte < low || byte > high) return {Utf8Kind::invalid, i, 0};
    value = (value << 6) | (byte & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::valid, n_bytes, value};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::size_t valid_utf8_prefix(std::string_view text, std::size_t pos) noexcept {
  std::size_t end = pos;
  while (end < text.size()) {
    const Utf8Step step = utf8_step(text, end);
    if (step.kind != Utf8Kind::valid) break;
    end += step.length;
  }
  return end - pos;
}

}  // namespace sluice::tokenizer
