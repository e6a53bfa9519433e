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

std::vector<TokenId> find_end_tokens(const Vocab& vocab, TokenId eos, const SpecialIds& special) {
  std::vector<TokenId> ends;
  const auto add_id = [&](TokenId token) {
    if (token >= 0) ends.push_back(token);
  };
  add_id(eos);
  for (const SpecialToken which : {SpecialToken::eot, SpecialToken::eom, SpecialToken::fim_padding,
                                   SpecialToken::fim_repository, SpecialToken::fim_file}) {
    add_id(special[static_cast<std::size_t>(which)]);
  }
  // To Gemma 4, which ends with <turn|>, </s> is HTML.
  const bool is_gemma4 = has_control(vocab, "<|tool_response>");
  const auto add = [&](std::string_view text) {
    const TokenId token = vocab.find(text);
    if (is_end(vocab, token, eos) && !(is_gemma4 && text == "</s>")) ends.push_back(token);
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
