#include "cli/chat.hpp"

#include <span>
#include <vector>

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

Conversation::Conversation(Model& model, std::optional<std::string> system, const SamplerOptions& sampler)
    : model_(model),
      sequence_(model.new_sequence()),
      system_(std::move(system)),
      sampler_options_(sampler),
      sampler_(sampler),
      form_(chat_form_of(model.tokenizer(), model.info().chat_template)) {
  begin();
}

void Conversation::reset() {
  sequence_.truncate(0);
  if (sampler_options_.seed == 0) sampler_ = Sampler(sampler_options_);
  begin();
}

void Conversation::begin() {
  first_turn_ = true;
  user_mark_written_ = false;
  history_.clear();
}

void Conversation::add(std::span<const TextPiece> pieces) {
  const std::vector<TokenId> tokens =
      model_.tokenizer().encode_pieces(pieces, history_.empty() ? -1 : history_.back());
  history_.insert(history_.end(), tokens.begin(), tokens.end());
}

void Conversation::add_turn(std::string_view message) {
  std::vector<TextPiece> pieces;
  const auto mark = [&](std::string_view text) { pieces.push_back({text, true}); };
  const auto words = [&](std::string_view text) { pieces.push_back({text, false}); };
  const auto add_system = [&] {
    mark(form_.system_begin);
    words(*system_);
    mark(form_.system_end);
  };
  const bool begins_with_system = first_turn_ && system_;
  if (begins_with_system && !form_.system_in_message) add_system();
  if (!first_turn_) {
    // The end token of the last answer was drawn but never computed.
    mark(form_.answer_end);
    const Tokenizer& tokenizer = model_.tokenizer();
    if (form_.answer_ends_with_eos) history_.push_back(tokenizer.eos());
    if (form_.turn_begins_with_bos && tokenizer.bos() >= 0) history_.push_back(tokenizer.bos());
  }
  std::string_view user_begin = form_.user_begin;
  if (form_.is_plain) {
    // The first line has nothing above it that it could end, and the model may have written the mark itself.
    if (user_mark_written_) {
      user_begin.remove_prefix(k_plain_stop.size());
    } else if (first_turn_) {
      user_begin.remove_prefix(1);
    }
  }
  mark(user_begin);
  if (begins_with_system && form_.system_in_message) add_system();
  words(message);
  mark(form_.user_end);
  add(pieces);
}

Generation Conversation::answer(std::string_view message, const GenerateOptions& options,
                                const std::function<bool(std::string_view)>& on_text) {
  GenerateOptions with_stop = options;
  if (form_.is_plain) with_stop.stop.emplace_back(k_plain_stop);
  const std::size_t n_before = history_.size();
  add_turn(message);
  Generation generation;
  try {
    // The sequence may lack the last token of the last answer, and more if that was cancelled early.
    const std::uint32_t n_computed = sequence_.n_tokens();
    const std::span<const TokenId> fresh = std::span(history_).subspan(n_computed);
    sampler_.forget();
    for (const TokenId token : std::span(history_).first(n_computed)) sampler_.accept(token);
    with_stop.kept_sampler = &sampler_;
    generation = generate(model_, sequence_, fresh, with_stop, on_text);
  } catch (...) {
    history_.resize(n_before);
    if (sequence_.n_tokens() > n_before) sequence_.truncate(static_cast<std::uint32_t>(n_before));
    throw;
  }
  history_.insert(history_.end(), generation.tokens.begin(), generation.tokens.end());
  first_turn_ = false;
  user_mark_written_ = generation.reason == StopReason::stop_string && generation.stop_string == k_plain_stop;
  return generation;
}

}  // namespace sluice::cli
