#include "cli/progress_line.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.hpp"
#include "cli/output.hpp"

namespace sluice::cli {

ProgressLine::ProgressLine(Clock::duration quiet)
    : start_(Clock::now()), next_(start_ + quiet), is_shown_(isatty(STDERR_FILENO) == 1) {}

void ProgressLine::show(base::FunctionRef<std::string(Clock::duration)> text) {
  if (!is_shown_) return;
  const auto now = Clock::now();
  if (now < next_) return;
  constexpr auto k_interval = std::chrono::milliseconds(200);
  next_ = now + k_interval;
  has_text_ = true;
  write_terminal("\r\x1b[K" + base::printable(text(now - start_)));
}

void ProgressLine::clear() {
  if (std::exchange(has_text_, false)) write_terminal("\r\x1b[K");
}

PromptProgress::PromptProgress(Model& model) : model_(model) {
  model_.set_progress([this](double n_done, std::size_t n_tokens) { show(n_done, n_tokens); });
}

void PromptProgress::show(double n_done, std::size_t n_tokens) {
  // What decoding computes at once, guesses included, is no prompt.
  constexpr std::size_t k_min_tokens = 65;
  if (n_tokens < k_min_tokens) return clear();
  if (n_done == 0) line_.emplace(std::chrono::seconds(1));
  if (line_) {
    line_->show(
        [&](ProgressLine::Clock::duration duration) { return prompt_progress(n_done, n_tokens, duration); });
  }
}

std::string prompt_progress(double n_done, std::size_t n_tokens, ProgressLine::Clock::duration duration) {
  const double share = n_tokens == 0 ? 1.0 : std::clamp(n_done / static_cast<double>(n_tokens), 0.0, 1.0);
  std::string text = fmt::format("{:.0f} % of {} prompt tokens", 100 * share, n_tokens);
  const double seconds = std::chrono::duration<double>(duration).count();
  if (share <= 0) return text;
  const double left = std::ceil(seconds / share - seconds);
  return text + (left < 100 ? fmt::format(", {:.0f} s left", left)
                            : fmt::format(", {:.0f} min left", std::ceil(left / 60)));
}

}  // namespace sluice::cli
