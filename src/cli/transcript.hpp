#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/generate.hpp"
#include "sluice/tokenizer.hpp"

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

/// The tokens of a conversation in the form of its model. Text of the user is never read as control tokens.
class Transcript {
 public:
  /// The tokenizer must outlive it.
  Transcript(const Tokenizer& tokenizer, std::string_view chat_template, std::optional<std::string> system);

  const ChatForm& form() const noexcept { return form_; }
  /// Text that ends an answer, because the form has no token for that; else empty.
  std::string_view stop() const noexcept;
  std::span<const TokenId> tokens() const noexcept { return tokens_; }

  /// Ends the last answer and adds a message of the user, up to where the answer begins.
  void add_message(std::string_view message);
  /// Adds the answer to the last message.
  void add_answer(const Generation& answer);
  /// Takes back a message that got no answer: there were `n_tokens` before it.
  void take_back_message(std::size_t n_tokens) { tokens_.resize(n_tokens); }
  /// Starts anew, with the same system message.
  void reset();

 private:
  void end_answer(std::vector<TextPiece>& pieces);
  std::string_view user_begin() const;

  const Tokenizer& tokenizer_;
  const ChatForm& form_;
  std::optional<std::string> system_;
  bool first_turn_ = true;
  bool user_mark_written_ = false;  ///< The model itself wrote the mark that opens the user's next turn.
  std::vector<TokenId> tokens_;
};

}  // namespace sluice::cli
