#include "base/json_reader.hpp"

#include <fmt/core.h>

#include <limits>

namespace sluice::base {
namespace {

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int n_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::uint32_t k_lead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(k_lead[n_more] | code >> (6 * n_more));
  for (int i = n_more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
}

}  // namespace

void JsonReader::skip_blanks() noexcept {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
    ++at_;
  }
}

char JsonReader::peek() noexcept {
  skip_blanks();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::open(char bracket, const char* what) {
  if (peek() != bracket) fail(fmt::format("expected {}", what));
  if (depth_ == k_max_depth) fail(fmt::format("nested deeper than {} levels", k_max_depth));
  ++at_;
  has_members_ &= ~(std::uint64_t{1} << depth_);
  ++depth_;
}

bool JsonReader::next(char bracket) {
  const std::uint64_t bit = std::uint64_t{1} << (depth_ - 1);
  const char c = peek();
  if (c == bracket) {
    ++at_;
    --depth_;
    return false;
  }
  if ((has_members_ & bit) != 0) {
    if (c != ',') fail(fmt::format("expected ',' or '{}'", bracket));
    ++at_;
  }
  has_members_ |= bit;
  return true;
}

bool JsonReader::next_key(std::string& key, std::size_t max_bytes) {
  if (!next('}')) return false;
  key = string(max_bytes);
  if (peek() != ':') fail("expected ':'");
  ++at_;
  return true;
}

std::uint64_t JsonReader::number(std::uint64_t max) {
  if (!is_digit(peek())) fail(fmt::format("expected an integer from 0 to {}", max));
  const std::size_t start = at_;
  std::uint64_t value = 0;
  for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
    const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
    if (digit > max || value > (max - digit) / 10) {
      at_ = start;
      fail(fmt::format("expected an integer from 0 to {}", max));
    }
    value = value * 10 + digit;
  }
  const bool is_fraction =
      at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E');
  if (is_fraction || (text_[start] == '0' && at_ != start + 1)) {
    at_ = start;
    fail(fmt::format("expected an integer from 0 to {}", max));
  }
  return value;
}

std::uint32_t JsonReader::hex4() {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    code <<= 4;
    if (is_digit(c)) {
      code |= static_cast<std::uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      code |= static_cast<std::uint32_t>((c | 0x20) - 'a' + 10);
    } else {
      fail("expected four hexadecimal digits");
    }
  }
  return code;
}

void JsonReader::append_escape(std::string& out) {
  ++at_;
  if (at_ == text_.size()) fail("a string without its end");
  const char c = text_[at_++];
  switch (c) {
    case '"':
    case '\\':
    case '/':
      out += c;
      return;
    case 'b':
      out += '\b';
      return;
    case 'f':
      out += '\f';
      return;
    case 'n':
      out += '\n';
      return;
    case 'r':
      out += '\r';
      return;
    case 't':
      out += '\t';
      return;
    case 'u': {
      std::uint32_t code = hex4();
      if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
        at_ += 2;
        const std::uint32_t low = hex4();
        if (low < 0xdc00 || low >= 0xe000) fail("a high surrogate without its low one");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else if (code >= 0xd800 && code < 0xe000) {
        fail("a surrogate on its own");
      }
      append_utf8(out, code);
      return;
    }
    default:
      fail("an unknown escape");
  }
}

std::string JsonReader::string(std::size_t max_bytes) {
  if (peek() != '"') fail("expected a string");
  ++at_;
  std::string out;
  for (;;) {
    if (at_ == text_.size()) fail("a string without its end");
    const char c = text_[at_];
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
    if (c == '\\') {
      append_escape(out);
    } else {
      out += c;
      ++at_;
    }
    if (out.size() > max_bytes) fail(fmt::format("a string of more than {} bytes", max_bytes));
  }
  ++at_;
  return out;
}

void JsonReader::expect_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail("expected a value");
  at_ += word.size();
}

void JsonReader::skip_number() {
  const auto digits = [this] {
    if (at_ == text_.size() || !is_digit(text_[at_])) fail("expected a digit");
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  };
  if (text_[at_] == '-') ++at_;
  digits();
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits();
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
  }
}

void JsonReader::skip_value() {
  switch (peek()) {
    case '{': {
      std::string key;
      begin_object();
      while (next_key(key, std::numeric_limits<std::size_t>::max())) skip_value();
      return;
    }
    case '[':
      begin_array();
      while (next_element()) skip_value();
      return;
    case '"':
      string(std::numeric_limits<std::size_t>::max());
      return;
    case 't':
      expect_word("true");
      return;
    case 'f':
      expect_word("false");
      return;
    case 'n':
      expect_word("null");
      return;
    default:
      if (at_ == text_.size()) fail("the text ends early");
      skip_number();
  }
}

void JsonReader::end() {
  if (peek() != '\0' || at_ != text_.size()) fail("expected the end of the text");
}

}  // namespace sluice::base
