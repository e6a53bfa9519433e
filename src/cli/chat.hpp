#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/transcript.hpp"
#include "sluice/generate.hpp"
#include "sluice/model.hpp"

namespace sluice::cli {

/// A conversation in one sequence: what was computed stays computed, each turn prefills only what is new.
class Conversation {
 public:
  /// `sampler` with the seed 0 draws new random numbers for each conversation.
  Conversation(Model& model, std::optional<std::string> system, const SamplerOptions& sampler);

  /// Adds a message of the user and generates the answer, with the conversation's own sampler. After an Error
  /// the conversation is as before the call.
  Generation answer(std::string_view message, const GenerateOptions& options,
                    const std::function<bool(std::string_view)>& on_text);

  /// Starts anew, with the same system message. The random numbers do not start again: with a seed they go
  /// on, so that a whole session can be repeated; without one they are new.
  void reset();

 private:
  Model& model_;
  Sequence sequence_;  ///< Holds a prefix of the transcript.
  Transcript transcript_;
  SamplerOptions sampler_options_;
  Sampler sampler_;
};

}  // namespace sluice::cli
