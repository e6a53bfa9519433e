#include "sluice/generate.hpp"

#include <optional>
#include <string>

#include "base/error.hpp"
#include "engine/stop_scanner.hpp"

namespace sluice {
namespace {

/// The text of one answer on its way out: tokens, whole characters, stop strings, the caller.
class Answer {
 public:
  /// `at_start`: no text comes before the answer.
  Answer(const Tokenizer& tokenizer, const GenerateOptions& options, bool at_start,
         const std::function<bool(std::string_view)>& on_text)
      : stream_(tokenizer, options.special, at_start), scanner_(options.stop), on_text_(on_text) {}

  /// Takes a generated token. Returns why the answer ends with it, if it does.
  std::optional<StopReason> push(TokenId token) {
    scanner_.push(stream_.push(token), ready_);
    if (!deliver()) return StopReason::cancelled;
    if (scanner_.matched()) return StopReason::stop_string;
    return std::nullopt;
  }

  /// No more tokens come, for this reason: gives out what was held back. Returns the reason that holds,
  /// because the last characters may complete a stop string.
  StopReason finish(StopReason reason) {
    if (refused_) return reason;
    scanner_.push(stream_.finish(), ready_);
    if (!scanner_.matched()) scanner_.finish(ready_);
    if (!deliver()) return StopReason::cancelled;
    return scanner_.matched() ? StopReason::stop_string : reason;
  }

  std::string take_text() noexcept { return std::move(text_); }
  std::string_view stop_string() const noexcept { return scanner_.match(); }

 private:
  bool deliver() {
    if (ready_.empty()) return true;
    text_.append(ready_);
    refused_ = on_text_ && !on_text_(ready_);
    ready_.clear();
    return !refused_;
  }

  TextStream stream_;
  engine::StopScanner scanner_;
  const std::function<bool(std::string_view)>& on_text_;
  std::string ready_;
  std::string text_;
  bool refused_ = false;
};

void check_prompt(std::span<const TokenId> prompt, const Sequence& sequence) {
  if (prompt.empty()) {
    base::fail(ErrorCode::invalid_argument, "the prompt has no tokens, so there is nothing to continue");
  }
  if (prompt.size() > sequence.n_free()) {
    base::fail(ErrorCode::context_full,
               "the prompt has {} tokens, but the context has room for {} more ({} are in use); shorten the "
               "prompt or "
               "ask for a larger context",
               prompt.size(), sequence.n_free(), sequence.n_tokens());
  }
}

}  // namespace

const char* stop_reason_name(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::end_token:
      return "end_token";
    case StopReason::stop_string:
      return "stop_string";
    case StopReason::token_limit:
      return "token_limit";
    case StopReason::context_full:
      return "context_full";
    case StopReason::cancelled:
      return "cancelled";
  }
  return "unknown";
}

Generation generate(Model& model, Sequence& sequence, std::span<const TokenId> prompt,
                    const GenerateOptions& options, const std::function<bool(std::string_view)>& on_text) {
  Sampler sampler(options.sampler);
  check_prompt(prompt, sequence);
  const bool at_start =
      sequence.n_tokens() == 0 && prompt.size() == 1 && prompt[0] == model.tokenizer().bos();
  Answer answer(model.tokenizer(), options, at_start, on_text);

  Generation result;
  result.n_prompt_tokens = static_cast<std::uint32_t>(prompt.size());
  for (const TokenId token : prompt) sampler.accept(token);

  // Computes `tokens` and draws the next one while its logits are at hand; nothing when the caller cancelled.
  const auto advance = [&](std::span<const TokenId> tokens) -> std::optional<TokenId> {
    std::optional<TokenId> next;
    const StepItem item{&sequence, tokens, LogitsWanted::last};
    try {
      model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
        next = sampler.sample(logits);
      });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::cancelled) throw;
      return std::nullopt;
    }
    if (!next) {
      base::fail(ErrorCode::internal, "a step of {} tokens gave no logits for its last token", tokens.size());
    }
    return next;
  };

  const auto run = [&]() -> StopReason {
    std::optional<TokenId> next = advance(prompt);
    for (;;) {
      if (!next) return StopReason::cancelled;
      const TokenId token = *next;
      if (!options.ignore_eos && model.tokenizer().is_end_of_generation(token)) return StopReason::end_token;
      result.tokens.push_back(token);
      sampler.accept(token);
      if (const auto reason = answer.push(token)) return *reason;
      if (options.max_tokens != 0 && result.tokens.size() >= options.max_tokens)
        return StopReason::token_limit;
      if (sequence.n_free() == 0) return StopReason::context_full;
      next = advance({&token, 1});
    }
  };
  result.reason = answer.finish(run());
  result.text = answer.take_text();
  result.stop_string = answer.stop_string();
  return result;
}

}  // namespace sluice
