#include "tokenizer/byte_tokens.hpp"

#include "base/error.hpp"

namespace sluice::tokenizer {
namespace {

int hex_value(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0x0A>" gives 10; anything else -1.
int parse_byte_token(std::string_view text) noexcept {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const int high = hex_value(text[3]), low = hex_value(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

std::array<TokenId, 256> find_byte_tokens(const Vocab& vocab, std::string_view file) {
  std::array<TokenId, 256> tokens;
  tokens.fill(-1);
  for (TokenId token = 0; vocab.contains(token); ++token) {
    if (vocab.kind(token) != TokenKind::byte) continue;
    const int byte = parse_byte_token(vocab.text(token));
    if (byte < 0) {
      base::fail(ErrorCode::invalid_file,
                 "{}: token {} is a byte token spelled \"{}\", expected <0x00> to <0xFF>; the file is "
                 "damaged or was converted wrongly",
                 file, token, vocab.text(token));
    }
    TokenId& slot = tokens[static_cast<std::size_t>(byte)];
    if (slot < 0) slot = token;
  }
  return tokens;
}

void append_marked(std::string& out, std::string_view text) {
  for (const char byte : text) {
    if (byte == ' ') {
      out.append(k_space_mark);
    } else {
      out.push_back(byte);
    }
  }
}

void append_unmarked(std::string& out, const Vocab& vocab, TokenId token) {
  const std::string_view text = vocab.text(token);
  if (vocab.kind(token) == TokenKind::byte) {
    out.push_back(static_cast<char>(parse_byte_token(text)));
    return;
  }
  for (std::size_t pos = 0; pos < text.size();) {
    if (text.substr(pos).starts_with(k_space_mark)) {
      out.push_back(' ');
      pos += k_space_mark.size();
    } else {
      out.push_back(text[pos++]);
    }
  }
}

}  // namespace sluice::tokenizer
