#include "sluice/generate.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "engine/generate/stop_scanner.hpp"
#include "engine/model/model_impl.hpp"
#include "engine/speculate/speculator.hpp"

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

/// The loop of one answer. Without a speculator each pass computes one token and draws the next.
///
/// With one, guesses of what follows go through the same pass. Tokens are drawn from its rows in order, by
/// the same sampler in the same state as without, for as long as each is what was guessed; the row behind the
/// last right guess gives one token more. The rest is taken back.
class Generator {
 public:
  Generator(Model& model, Sequence& sequence, const GenerateOptions& options, Answer& answer,
            Generation& result)
      : model_(model),
        sequence_(sequence),
        options_(options),
        own_sampler_(options.sampler),
        sampler_(options.kept_sampler == nullptr ? own_sampler_ : *options.kept_sampler),
        answer_(answer),
        result_(result),
        speculator_(options.speculator == nullptr ? nullptr : &options.speculator->impl()) {}

  StopReason run(std::span<const TokenId> prompt) {
    if (speculator_ != nullptr) speculator_->begin(sequence_.n_tokens(), prompt, ModelAccess::impl(model_));
    for (const TokenId token : prompt) sampler_.accept(token);
    const std::uint64_t start = base::now_ns();
    if (!advance(prompt, 0)) return StopReason::cancelled;
    if (speculator_ != nullptr)
      speculator_->prompt_done(prompt.size(), model_.plan().prefill_chunk, base::now_ns() - start);
    for (;;) {
      if (const auto reason = take_drawn()) return *reason;
      if (!next()) return StopReason::cancelled;
    }
  }

 private:
  bool ends(TokenId token) const {
    return !options_.ignore_eos && model_.tokenizer().is_end_of_generation(token);
  }

  /// The logits without the tokens that the file says are never to be generated.
  std::span<const float> allowed(std::span<const float> logits) {
    const std::span<const TokenId> suppressed = model_.tokenizer().suppressed_tokens();
    if (suppressed.empty()) return logits;
    allowed_.assign(logits.begin(), logits.end());
    for (const TokenId token : suppressed)
      allowed_[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
    return allowed_;
  }

  /// One pass behind the last token, with guesses if they pay; false when it was cancelled.
  bool next() {
    input_.assign(1, drawn_.back());
    if (speculator_ == nullptr) return advance(input_, 0);
    const std::span<const TokenId> guesses = speculator_->propose(room(), options_.ignore_eos);
    input_.insert(input_.end(), guesses.begin(), guesses.end());
    const std::uint64_t start = base::now_ns();
    if (!advance(input_, static_cast<std::uint32_t>(guesses.size()))) return false;
    speculator_->note_accepted(static_cast<std::uint32_t>(drawn_.size() - 1), base::now_ns() - start);
    return true;
  }

  /// Guesses that one pass can take: what is drawn from it must be wanted and have a place.
  std::uint32_t room() const {
    const Plan& plan = model_.plan();
    std::uint32_t room = std::min({sequence_.n_free(), plan.prefill_chunk, plan.rewind_tokens}) - 1;
    if (options_.max_tokens != 0)
      room = std::min(room, options_.max_tokens - static_cast<std::uint32_t>(result_.tokens.size()) - 1);
    return room;
  }

  /// Appends `tokens`, the last n_guesses of which are guesses, and draws what follows the others and each
  /// right guess; takes back the wrong ones. False when the caller cancelled.
  bool advance(std::span<const TokenId> tokens, std::uint32_t n_guesses) {
    drawn_.clear();
    const std::span<const TokenId> guesses = tokens.last(n_guesses);
    const StepItem item{&sequence_, tokens, n_guesses == 0 ? LogitsWanted::last : LogitsWanted::all,
                        n_guesses};
    bool goes_on = true;
    try {
      model_.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
        if (!goes_on) return;
        if (!drawn_.empty()) sampler_.accept(drawn_.back());
        const TokenId token = sampler_.sample(allowed(logits));
        goes_on = drawn_.size() < n_guesses && token == guesses[drawn_.size()] && !ends(token);
        drawn_.push_back(token);
      });
    } catch (const Error& error) {
      if (error.code() == ErrorCode::cancelled) return false;
      fail(error);
    }
    if (drawn_.empty()) {
      base::fail(ErrorCode::internal, "a step of {} tokens gave no logits for its last token", tokens.size());
    }
    take_back(n_guesses + 1 - drawn_.size());
    return true;
  }

  [[noreturn]] void fail(const Error& error) {
    answer_.finish(StopReason::failed);  // The text that was held back belongs to the tokens.
    result_.text = answer_.take_text();
    result_.reason = StopReason::failed;
    throw GenerationError(error, std::move(result_));
  }

  void take_back(std::size_t n_tokens) {
    if (n_tokens == 0) return;
    const std::uint32_t n = sequence_.n_tokens() - static_cast<std::uint32_t>(n_tokens);
    SLUICE_CHECK(sequence_.rewind(n) == n);
  }

  /// Adds what was drawn to the answer. Where the answer ends inside it, the sequence loses what follows: it
  /// then holds all but the token that ended the answer, as if each had been computed by itself.
  std::optional<StopReason> take_drawn() {
    for (std::size_t i = 0; i < drawn_.size(); ++i) {
      const bool is_last = i + 1 == drawn_.size();
      const auto reason = take(drawn_[i], is_last);
      if (speculator_ != nullptr && (reason || is_last)) speculator_->count(i);
      if (!reason) continue;
      take_back(drawn_.size() - 1 - i);
      return reason;
    }
    return std::nullopt;
  }

  std::optional<StopReason> take(TokenId token, bool is_last) {
    if (ends(token)) return StopReason::end_token;
    result_.tokens.push_back(token);
    if (is_last) sampler_.accept(token);
    if (speculator_ != nullptr) speculator_->push(token);
    if (const auto reason = answer_.push(token)) return reason;
    if (options_.max_tokens != 0 && result_.tokens.size() >= options_.max_tokens)
      return StopReason::token_limit;
    if (is_last && sequence_.n_free() == 0) return StopReason::context_full;
    // The step of this token would have seen it.
    if (!is_last && is_cancelled()) return StopReason::cancelled;
    return std::nullopt;
  }

  bool is_cancelled() const {
    const std::atomic<bool>* cancel = ModelAccess::impl(model_).cancel;
    return cancel != nullptr && cancel->load(std::memory_order_relaxed);
  }

  Model& model_;
  Sequence& sequence_;
  const GenerateOptions& options_;
  Sampler own_sampler_;
  Sampler& sampler_;
  Answer& answer_;
  Generation& result_;
  Speculator::Impl* speculator_;
  std::vector<TokenId> input_;
  std::vector<float> allowed_;
  /// What the last pass gave: right guesses and one more. The sequence holds all but the last.
  std::vector<TokenId> drawn_;
};

}  // namespace

void check_prompt(std::size_t n_tokens, std::uint32_t n_ctx, std::uint32_t n_used) {
  if (n_tokens == 0)
    base::fail(ErrorCode::invalid_argument, "the prompt has no tokens, so there is nothing to continue");
  if (n_tokens <= n_ctx - std::min(n_ctx, n_used)) return;
  base::fail(ErrorCode::context_full,
             "the prompt has {} tokens, but the context has room for {} more ({} are in use); shorten the "
             "prompt or ask for a larger context",
             n_tokens, n_ctx - std::min(n_ctx, n_used), n_used);
}

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
    case StopReason::failed:
      return "failed";
  }
  return "unknown";
}

Generation generate(Model& model, Sequence& sequence, std::span<const TokenId> prompt,
                    const GenerateOptions& options, const std::function<bool(std::string_view)>& on_text) {
  Generation result;
  result.n_prompt_tokens = static_cast<std::uint32_t>(prompt.size());
  const bool at_start =
      sequence.n_tokens() == 0 && prompt.size() == 1 && prompt[0] == model.tokenizer().bos();
  Answer answer(model.tokenizer(), options, at_start, on_text);
  Generator generator(model, sequence, options, answer, result);
  check_prompt(prompt.size(), sequence.n_tokens() + sequence.n_free(), sequence.n_tokens());
  result.reason = answer.finish(generator.run(prompt));
  result.text = answer.take_text();
  result.stop_string = answer.stop_string();
  return result;
}

}  // namespace sluice
