#include <algorithm>

#include "tokenizer/chat_marks.hpp"
#include "tokenizer/text_tokenizer.hpp"

namespace sluice::tokenizer {
namespace {

bool is_end(const Vocab& vocab, TokenId token, TokenId eos) {
  return token >= 0 && (token == eos || vocab.kind(token) == TokenKind::control);
}

bool has_control(const Vocab& vocab, std::string_view text) {
  return is_end(vocab, vocab.find(text), -1);
}

// gpt-oss and Solar Open end each message of a turn with <|end|>; the turn goes on.
bool end_only_ends_message(const Vocab& vocab) {
  return (has_control(vocab, "<|return|>") && has_control(vocab, "<|call|>")) ||
         (has_control(vocab, "<|calls|>") && has_control(vocab, "<|flush|>"));
}

}  // namespace

TokenId find_end_of_turn(const Vocab& vocab, TokenId eos) {
  for (const std::string_view text : turn_end_marks()) {
    if (text == "<|end|>" && end_only_ends_message(vocab)) continue;
    const TokenId token = vocab.find(text);
    if (is_end(vocab, token, eos)) return token;
  }
  return -1;
}

std::vector<TokenId> find_end_tokens(const Vocab& vocab, TokenId eos, TokenId eot, TokenId eom) {
  std::vector<TokenId> ends;
  for (const TokenId token : {eos, eot, eom}) {
    if (token >= 0) ends.push_back(token);
  }
  const auto add = [&](std::string_view text) {
    const TokenId token = vocab.find(text);
    if (is_end(vocab, token, eos)) ends.push_back(token);
  };
  for (const std::string_view text : turn_end_marks()) {
    if (text != "<|end|>" || !end_only_ends_message(vocab)) add(text);
  }
  for (const std::string_view text : other_end_marks()) add(text);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace sluice::tokenizer
