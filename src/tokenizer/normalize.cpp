#include "tokenizer/normalize.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {
namespace {

constexpr std::size_t k_piece_bytes = 4096;
constexpr std::uint32_t k_max_marks = 32;

struct Free {
  void operator()(utf8proc_uint8_t* data) const noexcept { std::free(data); }
};

// Characters that never combine with what stands before them, so a text may be normalized in parts cut there.
bool starts_part(char32_t code_point) noexcept {
  return code_point < 0x300 || (code_point >= 0x4E00 && code_point <= 0x9FFF);
}

void append_piece(std::string_view piece, std::string& out) {
  utf8proc_uint8_t* data = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(piece.data()), static_cast<utf8proc_ssize_t>(piece.size()),
      &data, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(data);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0) {
    out.append(piece);
  } else {
    out.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
  }
}

}  // namespace

bool is_surely_nfc(std::string_view text) noexcept {
  // Everything below U+0300 is unchanged, and that is what the lead bytes below 0xCC begin.
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

std::string normalize_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t piece_begin = 0;
  std::uint32_t n_marks = 0;
  const auto cut = [&](std::size_t end) {
    if (end > piece_begin) append_piece(text.substr(piece_begin, end - piece_begin), out);
    piece_begin = end;
    n_marks = 0;
  };
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    if (step.kind != Utf8Kind::valid) {
      cut(pos);
      out.append(text.substr(pos, step.length));
      pos += step.length;
      piece_begin = pos;
      continue;
    }
    if (starts_part(step.code_point)) {
      if (pos - piece_begin >= k_piece_bytes) cut(pos);
      n_marks = 0;
    } else if (utf8proc_get_property(static_cast<utf8proc_int32_t>(step.code_point))->combining_class == 0) {
      n_marks = 0;
    } else if (++n_marks > k_max_marks) {
      cut(pos);
    }
    pos += step.length;
  }
  cut(text.size());
  return out;
}

}  // namespace sluice::tokenizer
