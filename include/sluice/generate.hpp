#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/model.hpp"
#include "sluice/sampler.hpp"

namespace sluice {

class Speculator;

enum class StopReason {
  end_token,
  stop_string,
  token_limit,
  context_full,
  cancelled,
  failed,  ///< Only in GenerationError.
};
const char* stop_reason_name(StopReason reason) noexcept;

struct GenerateOptions {
  SamplerOptions sampler;
  /// Draws instead of one made from `sampler`, and goes on after this answer: for a conversation, in which a
  /// new sampler would repeat the random numbers of the last turn. Its penalty must know the tokens that the
  /// sequence holds already (Sampler::accept), and no others: generate() adds those of prompt and answer.
  Sampler* kept_sampler = nullptr;
  std::uint32_t max_tokens = 0;   ///< 0: until an end token or the context is full.
  std::vector<std::string> stop;  ///< The text ends before the first of these.
  bool ignore_eos = false;
  bool special = false;  ///< Show control tokens in the text.
  /// Guesses tokens ahead to save passes; changes no token. Made for this model (sluice/speculate.hpp).
  Speculator* speculator = nullptr;
};

struct Generation {
  std::string text;
  std::vector<TokenId> tokens;  ///< Generated tokens, without the end token.
  StopReason reason = StopReason::token_limit;
  std::string stop_string;  ///< The one that was met.
  std::uint32_t n_prompt_tokens = 0;
};

/// An answer that ended because a step failed, with what there was of it: `partial` has the reason `failed`.
class GenerationError : public Error {
 public:
  GenerationError(const Error& cause, Generation partial)
      : Error(cause.code(), cause.what()), partial_(std::move(partial)) {}
  const Generation& partial() const noexcept { return partial_; }

 private:
  Generation partial_;
};

/// What generate() refuses of a prompt's length: throws Error(invalid_argument) when it has no tokens and
/// Error(context_full) when it does not fit. For OpenOptions::before_loading.
void check_prompt(std::size_t n_tokens, std::uint32_t n_ctx, std::uint32_t n_used = 0);

/// Prefills `prompt` into the sequence and generates from it. `on_text` gets the text as it becomes final
/// (whole UTF-8 characters, nothing that may still be part of a stop string); returning false ends the answer
/// as cancelled. A prompt that does not fit throws Error(context_full) before anything is computed; a full
/// context during generation ends with that reason. A raised cancel flag ends with reason cancelled rather
/// than an exception; any other error of a step is thrown as GenerationError. Afterwards the sequence holds
/// prompt and answer, except for the very last token when it was never fed back.
Generation generate(Model& model, Sequence& sequence, std::span<const TokenId> prompt,
                    const GenerateOptions& options,
                    const std::function<bool(std::string_view)>& on_text = {});

}  // namespace sluice
