#include "tokenizer/byte_alphabet.hpp"

#include <array>
#include <cstdint>

#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {
namespace {

constexpr std::size_t k_n_bytes = 256;
constexpr std::size_t k_n_code_points = 0x100 + 68;

struct Alphabet {
  std::array<std::uint16_t, k_n_bytes> code_point_of{};
  std::array<std::int16_t, k_n_code_points> byte_of{};

  constexpr Alphabet() {
    for (auto& byte : byte_of) byte = -1;
    std::uint16_t next = 0x100;
    for (std::size_t byte = 0; byte < k_n_bytes; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const std::uint16_t code_point = printable ? static_cast<std::uint16_t>(byte) : next++;
      code_point_of[byte] = code_point;
      byte_of[code_point] = static_cast<std::int16_t>(byte);
    }
  }
};

constexpr Alphabet k_alphabet;
static_assert(k_alphabet.code_point_of[' '] == 0x120, "a space is spelled U+0120");
static_assert(k_alphabet.byte_of[k_n_code_points - 1] == 0xAD, "the last spelled byte is the soft hyphen");

}  // namespace

void append_byte_spelling(std::string& out, unsigned char byte) {
  append_utf8(out, k_alphabet.code_point_of[byte]);
}

void append_spelled_bytes(std::string& out, std::string_view spelling) {
  for (std::size_t pos = 0; pos < spelling.size();) {
    const Utf8Step step = utf8_step(spelling, pos);
    const bool in_alphabet = step.kind == Utf8Kind::valid && step.code_point < k_n_code_points &&
                             k_alphabet.byte_of[step.code_point] >= 0;
    if (in_alphabet) {
      out.push_back(static_cast<char>(k_alphabet.byte_of[step.code_point]));
    } else {
      out.append(spelling.substr(pos, step.length));
    }
    pos += step.length;
  }
}

}  // namespace sluice::tokenizer
