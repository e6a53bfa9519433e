#include "tokenizer/tokenizer.hpp"
#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {
namespace {

// Moves everything that is complete, or can no longer become a character, from the front of `pending` to
// `out`.
void move_complete(std::string& pending, std::string& out, bool at_end) {
  std::size_t pos = 0;
  while (pos < pending.size()) {
    const Utf8Step step = utf8_step(pending, pos);
    if (step.kind == Utf8Kind::incomplete && !at_end) break;
    if (step.kind == Utf8Kind::valid) {
      out.append(pending, pos, step.length);
    } else {
      out.append(k_replacement_character);
    }
    pos += step.length;
  }
  pending.erase(0, pos);
}

}  // namespace

std::string StreamDecoder::push(TokenId token) {
  const std::string bytes = tokenizer_->token_bytes(token, special_);
  std::string_view added = bytes;
  if (at_start_ && !added.empty()) {
    at_start_ = false;
    // Encoding put the space before plain text only; what an added or control token spells is kept whole.
    const TokenKind kind = tokenizer_->token_kind(token);
    const bool plain = kind == TokenKind::normal || kind == TokenKind::byte;
    if (plain && tokenizer_->adds_space_prefix() && added.front() == ' ') added.remove_prefix(1);
  }
  pending_.append(added);
  std::string out;
  move_complete(pending_, out, false);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  move_complete(pending_, out, true);
  return out;
}

std::string Tokenizer::decode(const std::vector<TokenId>& tokens, bool special) const {
  StreamDecoder decoder(*this, special);
  std::string out;
  for (const TokenId token : tokens) out += decoder.push(token);
  out += decoder.finish();
  return out;
}

}  // namespace sluice::tokenizer
