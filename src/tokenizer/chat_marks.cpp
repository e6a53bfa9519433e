#include "tokenizer/chat_marks.hpp"

#include <algorithm>
#include <array>

namespace sluice::tokenizer {
namespace {

constexpr auto k_turn_ends = std::to_array<std::string_view>({
    "<|im_end|>",             // ChatML: Qwen, Yi, SmolLM
    "<|eot_id|>",             // Llama 3
    "<|eot|>",                // Llama 4
    "<end_of_turn>",          // Gemma
    "<turn|>",                // Gemma 4
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
    "<|tool_response>",  // Gemma 4: what follows is for a tool to say
});

// What opens a turn or names its speaker.
constexpr auto k_openings = std::to_array<std::string_view>({
    "<|im_start|>",
    "<|im_sep|>",  // ChatML, Phi-4
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",  // Kimi
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",  // Llama 3
    "<|header_start|>",
    "<|header_end|>",  // Llama 4
    "<start_of_turn>",
    "<bos>",    // Gemma
    "<|turn>",  // Gemma 4
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",  // Phi, GLM, Zephyr
    "<|start|>",
    "<|message|>",
    "<|channel|>",  // gpt-oss
    "<|START_OF_TURN_TOKEN|>",
    "<|SYSTEM_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",  // Command R
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",  // Mistral
    "<|start_of_role|>",
    "<|end_of_role|>",  // Granite
    "<|startoftext|>",  // LFM
    "<\xEF\xBD\x9C"
    "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",  // DeepSeek
    "<\xEF\xBD\x9CUser\xEF\xBD\x9C>",
    "<\xEF\xBD\x9C"
    "Assistant\xEF\xBD\x9C>",
});

bool contains(std::span<const std::string_view> texts, std::string_view text) noexcept {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

bool has_pair(std::string_view text, char open, char close) noexcept {
  const std::size_t begin = text.find(open);
  return begin != std::string_view::npos && text.find(close, begin + 2) != std::string_view::npos;
}

}  // namespace

std::span<const std::string_view> turn_end_marks() noexcept {
  return k_turn_ends;
}

std::span<const std::string_view> other_end_marks() noexcept {
  return k_other_ends;
}

bool is_chat_mark(std::string_view text) noexcept {
  // Most of a vocabulary ends here.
  if (text.empty() || std::string_view("<[_").find(text.front()) == std::string_view::npos) return false;
  return text != "</s>" &&
         (contains(k_turn_ends, text) || contains(k_other_ends, text) || contains(k_openings, text));
}

bool looks_like_markup(std::string_view text) noexcept {
  return is_chat_mark(text) || has_pair(text, '<', '>') || has_pair(text, '[', ']');
}

}  // namespace sluice::tokenizer
