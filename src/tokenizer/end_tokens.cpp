#include <algorithm>
#include <array>

#include "tokenizer/text_tokenizer.hpp"

namespace sluice::tokenizer {
namespace {

// The first that is found is the end of a turn, so formats with a turn token stand before end-of-text tokens.
constexpr auto k_turn_ends = std::to_array<std::string_view>({
    "<|im_end|>",             // ChatML: Qwen, Yi, SmolLM
    "<|eot_id|>",             // Llama 3
    "<|eot|>",                // Llama 4
    "<end_of_turn>",          // Gemma
    "<|end|>",                // Phi, gpt-oss (where it ends a message, not the generation)
    "<|END_OF_TURN_TOKEN|>",  // Command R
    "<|end_of_turn|>",        // OpenChat
    "[EOT]",
    "<EOT>",
    "_<EOT>",
    "<end_of_utterance>",  // SmolVLM
    "<|end_of_text|>",     // Granite
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",  // DeepSeek, with full-width bars
    "<|endoftext|>",
});

constexpr auto k_other_ends = std::to_array<std::string_view>({
    "<|eom_id|>",                                                   // Llama 3 tool calls
    "<|return|>", "<|call|>",                                       // gpt-oss
    "</s>", "<eos>", "[EOS]", "<|eos|>", "<|calls|>", "<|flush|>",  // Solar Open
    "[e~[",                                                         // MiniMax M2
});

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
  for (const std::string_view text : k_turn_ends) {
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
  for (const std::string_view text : k_turn_ends) {
    if (text != "<|end|>" || !end_only_ends_message(vocab)) add(text);
  }
  for (const std::string_view text : k_other_ends) add(text);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace sluice::tokenizer
