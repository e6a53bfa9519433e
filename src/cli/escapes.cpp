#include "cli/escapes.hpp"

#include <charconv>

namespace sluice::cli {

std::string unescape(std::string_view text) {
  constexpr std::string_view k_letters = "nrt\\\"'", k_meanings = "\n\r\t\\\"'";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const std::size_t letter = k_letters.find(text[i + 1]);
    const std::string_view digits =
        text.substr(i + 1).size() >= 3 ? text.substr(i + 2, 2) : std::string_view();
    unsigned char code = 0;
    if (letter != std::string_view::npos) {
      out += k_meanings[letter];
      ++i;
    } else if (text[i + 1] == 'x' && !digits.empty() &&
               std::from_chars(digits.data(), digits.data() + 2, code, 16).ptr == digits.data() + 2) {
      out += static_cast<char>(code);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace sluice::cli
