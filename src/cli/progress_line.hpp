#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/function_ref.hpp"
#include "sluice/model.hpp"

namespace sluice::cli {

/// A line on the terminal behind standard error that is written over, at most every 200 ms; nothing
/// elsewhere. Gone when this is.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;
  /// Nothing is shown in the first `quiet` of the work: what is done at once needs no progress.
  explicit ProgressLine(Clock::duration quiet = {});
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `text` is called when a new line is due, with the time since the work began.
  void show(base::FunctionRef<std::string(Clock::duration)> text);
  void clear();

 private:
  Clock::time_point start_, next_;
  bool is_shown_;
  bool has_text_ = false;
};

/// Shows how far the prompt of a step is, with the time that is left, where that takes more than a second.
class PromptProgress {
 public:
  explicit PromptProgress(Model& model);
  ~PromptProgress() { model_.set_progress({}); }
  PromptProgress(const PromptProgress&) = delete;
  PromptProgress& operator=(const PromptProgress&) = delete;
  void clear() { line_.reset(); }  ///< Before anything else is written.

 private:
  void show(double n_done, std::size_t n_tokens);
  Model& model_;
  std::optional<ProgressLine> line_;
};

/// "43 % of 2048 prompt tokens, 12 s left": `n_done` of them, which may be parts of tokens, took `duration`.
std::string prompt_progress(double n_done, std::size_t n_tokens, ProgressLine::Clock::duration duration);

}  // namespace sluice::cli
