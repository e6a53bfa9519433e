#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/generate.hpp"
#include "sluice/model.hpp"

namespace sluice::cli {

/// A conversation in one sequence: what was computed stays computed, each turn prefills only what is new.
///
/// Turns are written in ChatML when the vocabulary has its marks, else as "User:" and "Assistant:" lines.
/// Text of the user is never read as control tokens.
class Conversation {
 public:
  Conversation(Model& model, std::optional<std::string> system);

  /// Whether the vocabulary has ChatML's marks.
  bool chatml() const noexcept { return chatml_; }

  /// Adds a message of the user and generates the answer. After an Error the conversation is as before the
  /// call.
  Generation answer(std::string_view message, const GenerateOptions& options,
                    const std::function<bool(std::string_view)>& on_text);

  /// Starts anew, with the same system message.
  void reset();

 private:
  void begin();
  void add_turn(std::string_view message);

  Model& model_;
  Sequence sequence_;
  std::optional<std::string> system_;
  bool chatml_;
  bool first_turn_ = true;
  bool user_mark_written_ = false;  ///< The model itself wrote the mark that opens the user's next turn.
  std::vector<TokenId> history_;    ///< All tokens of the conversation; the sequence holds a prefix of them.
};

}  // namespace sluice::cli
