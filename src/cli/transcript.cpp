#include "cli/transcript.hpp"

#include <utility>

namespace sluice::cli {
namespace {

constexpr ChatForm k_chatml{.system_begin = "<|im_start|>system\n",
                            .system_end = "<|im_end|>\n",
                            .user_begin = "<|im_start|>user\n",
                            .user_end = "<|im_end|>\n<|im_start|>assistant\n",
                            .answer_end = "<|im_end|>\n"};
constexpr ChatForm k_llama3{.system_begin = "<|start_header_id|>system<|end_header_id|>\n\n",
                            .system_end = "<|eot_id|>",
                            .user_begin = "<|start_header_id|>user<|end_header_id|>\n\n",
                            .user_end = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
                            .answer_end = "<|eot_id|>"};
constexpr ChatForm k_llama2{.system_begin = "<<SYS>>\n",
                            .system_end = "\n<</SYS>>\n\n",
                            .user_begin = "[INST] ",
                            .user_end = " [/INST]",
                            .system_in_message = true,
                            .answer_ends_with_eos = true,
                            .turn_begins_with_bos = true};
constexpr ChatForm k_mistral{.system_end = "\n\n",
                             .user_begin = "[INST] ",
                             .user_end = " [/INST]",
                             .system_in_message = true,
                             .answer_ends_with_eos = true};
constexpr ChatForm k_plain{
    .system_end = "\n", .user_begin = "\nUser: ", .user_end = "\nAssistant:", .is_plain = true};
constexpr std::string_view k_plain_stop = "\nUser:";

}  // namespace

const ChatForm& chat_form_of(const Tokenizer& tokenizer, std::string_view chat_template) {
  const auto has_token = [&](std::string_view text) { return tokenizer.find_token(text) >= 0; };
  const auto is_in_template = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  if (has_token("<|im_start|>") && has_token("<|im_end|>")) return k_chatml;
  if (has_token("<|start_header_id|>") && has_token("<|eot_id|>")) return k_llama3;
  // These two end an answer with the end token only.
  if (tokenizer.eos() < 0) return k_plain;
  if (is_in_template("<<SYS>>")) return k_llama2;
  if (has_token("[INST]") || is_in_template("[INST]")) return k_mistral;
  return k_plain;
}

Transcript::Transcript(const Tokenizer& tokenizer, std::string_view chat_template,
                       std::optional<std::string> system)
    : tokenizer_(tokenizer), form_(chat_form_of(tokenizer, chat_template)), system_(std::move(system)) {}

std::string_view Transcript::stop() const noexcept {
  return form_.is_plain ? k_plain_stop : std::string_view();
}

void Transcript::reset() {
  first_turn_ = true;
  user_mark_written_ = false;
  tokens_.clear();
}

/// The end token of the last answer was drawn but is not among its tokens.
void Transcript::end_answer(std::vector<TextPiece>& pieces) {
  if (first_turn_) return;
  pieces.push_back({form_.answer_end, true});
  if (form_.answer_ends_with_eos) tokens_.push_back(tokenizer_.eos());
  if (form_.turn_begins_with_bos && tokenizer_.bos() >= 0) tokens_.push_back(tokenizer_.bos());
}

std::string_view Transcript::user_begin() const {
  std::string_view begin = form_.user_begin;
  if (!form_.is_plain) return begin;
  // The first line has nothing above it that it could end, and the model may have written the mark itself.
  if (user_mark_written_) {
    begin.remove_prefix(k_plain_stop.size());
  } else if (first_turn_) {
    begin.remove_prefix(1);
  }
  return begin;
}

void Transcript::add_message(std::string_view message) {
  std::vector<TextPiece> pieces;
  const auto add_system = [&] {
    pieces.push_back({form_.system_begin, true});
    pieces.push_back({*system_, false});
    pieces.push_back({form_.system_end, true});
  };
  const bool begins_with_system = first_turn_ && system_;
  if (begins_with_system && !form_.system_in_message) add_system();
  end_answer(pieces);
  pieces.push_back({user_begin(), true});
  if (begins_with_system && form_.system_in_message) add_system();
  pieces.push_back({message, false});
  pieces.push_back({form_.user_end, true});
  const std::vector<TokenId> added = tokenizer_.encode_pieces(pieces, tokens_.empty() ? -1 : tokens_.back());
  tokens_.insert(tokens_.end(), added.begin(), added.end());
}

void Transcript::add_answer(const Generation& answer) {
  tokens_.insert(tokens_.end(), answer.tokens.begin(), answer.tokens.end());
  first_turn_ = false;
  user_mark_written_ = answer.reason == StopReason::stop_string && answer.stop_string == k_plain_stop;
}

}  // namespace sluice::cli
