#include "cli/chat.hpp"

#include <span>
#include <vector>

namespace sluice::cli {
namespace {

constexpr std::string_view k_plain_user = "\nUser:";

}  // namespace

Conversation::Conversation(Model& model, std::optional<std::string> system)
    : model_(model),
      sequence_(model.new_sequence()),
      system_(std::move(system)),
      chatml_(model.tokenizer().find_token("<|im_start|>") >= 0 &&
              model.tokenizer().find_token("<|im_end|>") >= 0) {
  begin();
}

void Conversation::reset() {
  sequence_.truncate(0);
  begin();
}

void Conversation::begin() {
  first_turn_ = true;
  user_mark_written_ = false;
  history_.clear();
}

void Conversation::add_turn(std::string_view message) {
  std::vector<TextPiece> pieces;
  const auto mark = [&](std::string_view text) { pieces.push_back({text, true}); };
  const auto text = [&](std::string_view words) { pieces.push_back({words, false}); };
  if (chatml_) {
    if (first_turn_ && system_) {
      mark("<|im_start|>system\n");
      text(*system_);
      mark("<|im_end|>\n");
    }
    // The end token of the last answer was drawn but never computed.
    if (!first_turn_) mark("<|im_end|>\n");
    mark("<|im_start|>user\n");
    text(message);
    mark("<|im_end|>\n<|im_start|>assistant\n");
  } else {
    if (first_turn_ && system_) {
      text(*system_);
      text("\n");
    }
    if (!user_mark_written_) text(first_turn_ ? k_plain_user.substr(1) : k_plain_user);
    text(" ");
    text(message);
    text("\nAssistant:");
  }
  const std::vector<TokenId> tokens =
      model_.tokenizer().encode_pieces(pieces, history_.empty() ? -1 : history_.back());
  history_.insert(history_.end(), tokens.begin(), tokens.end());
}

Generation Conversation::answer(std::string_view message, const GenerateOptions& options,
                                const std::function<bool(std::string_view)>& on_text) {
  GenerateOptions with_stop = options;
  if (!chatml_) with_stop.stop.emplace_back(k_plain_user);
  const std::size_t n_before = history_.size();
  add_turn(message);
  Generation generation;
  try {
    // The sequence may lack the last token of the last answer, and more if that was cancelled early.
    const std::span<const TokenId> fresh = std::span(history_).subspan(sequence_.n_tokens());
    generation = generate(model_, sequence_, fresh, with_stop, on_text);
  } catch (...) {
    history_.resize(n_before);
    if (sequence_.n_tokens() > n_before) sequence_.truncate(static_cast<std::uint32_t>(n_before));
    throw;
  }
  history_.insert(history_.end(), generation.tokens.begin(), generation.tokens.end());
  first_turn_ = false;
  user_mark_written_ = generation.reason == StopReason::stop_string && generation.stop_string == k_plain_user;
  return generation;
}

}  // namespace sluice::cli
