#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/generate.hpp"
#include "sluice/model.hpp"

namespace sluice::cli {

/// How the turns of a chat are written. Marks are read as control tokens where the vocabulary has them.
struct ChatForm {
  std::string_view system_begin = {}, system_end = {};
  std::string_view user_begin = {};   ///< Before a message.
  std::string_view user_end = {};     ///< Behind it; the answer follows.
  std::string_view answer_end = {};   ///< Before the next turn.
  bool system_in_message = false;     ///< The system message stands inside the first message, not before it.
  bool answer_ends_with_eos = false;  ///< The end token stands before the next turn, too.
  bool turn_begins_with_bos = false;  ///< Every turn but the first begins with BOS.
  bool is_plain = false;              ///< Lines instead of marks.
};

/// ChatML or Llama 3 where the vocabulary has the marks, Llama 2 or Mistral where it or the file's template
/// has [INST]; else "User:" and "Assistant:" lines.
const ChatForm& chat_form_of(const Tokenizer& tokenizer, std::string_view chat_template);

/// A conversation in one sequence: what was computed stays computed, each turn prefills only what is new.
/// Text of the user is never read as control tokens.
class Conversation {
 public:
  /// `sampler` with the seed 0 draws new random numbers for each conversation.
  Conversation(Model& model, std::optional<std::string> system, const SamplerOptions& sampler);

  const ChatForm& form() const noexcept { return form_; }

  /// Adds a message of the user and generates the answer, with the conversation's own sampler. After an Error
  /// the conversation is as before the call.
  Generation answer(std::string_view message, const GenerateOptions& options,
                    const std::function<bool(std::string_view)>& on_text);

  /// Starts anew, with the same system message. The random numbers do not start again: with a seed they go
  /// on, so that a whole session can be repeated; without one they are new.
  void reset();

 private:
  void begin();
  void add(std::span<const TextPiece> pieces);
  void add_turn(std::string_view message);

  Model& model_;
  Sequence sequence_;
  std::optional<std::string> system_;
  SamplerOptions sampler_options_;
  Sampler sampler_;
  const ChatForm& form_;
  bool first_turn_ = true;
  bool user_mark_written_ = false;  ///< The model itself wrote the mark that opens the user's next turn.
  std::vector<TokenId> history_;    ///< All tokens of the conversation; the sequence holds a prefix of them.
};

}  // namespace sluice::cli
