#include "cli/opening.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/units.hpp"
#include "cli/output.hpp"
#include "cli/signals.hpp"
#include "sluice/warnings.hpp"

namespace sluice::cli {
namespace {

const char* stage_text(OpenStage stage) {
  switch (stage) {
    case OpenStage::weights:
      return "reading weights";
    case OpenStage::memory:
      return "taking memory for experts";
    case OpenStage::experts:
      return "reading experts";
  }
  return "opening";
}

/// Clears the line before a warning is printed, while it lives.
class WarningsClear {
 public:
  explicit WarningsClear(OpenProgressLine& line) {
    set_warning_sink([&line](std::string_view text) {
      line.clear();
      print_warning(text);
    });
  }
  ~WarningsClear() { set_warning_sink(print_warning); }
  WarningsClear(const WarningsClear&) = delete;
  WarningsClear& operator=(const WarningsClear&) = delete;
};

}  // namespace

std::string open_progress(const OpenProgress& progress, std::uint64_t bytes,
                          ProgressLine::Clock::duration duration) {
  const double share = progress.total_bytes == 0 ? 1.0
                                                 : static_cast<double>(progress.done_bytes) /
                                                       static_cast<double>(progress.total_bytes);
  std::string text = fmt::format("{}: {:.0f} % of {}", stage_text(progress.stage),
                                 100 * std::clamp(share, 0.0, 1.0), base::format_bytes(progress.total_bytes));
  const double seconds = std::chrono::duration<double>(duration).count();
  // Taking memory has no rate that means anything.
  if (progress.stage == OpenStage::memory || seconds <= 0 || bytes == 0) return text;
  return text + fmt::format(", {:.2f} GB/s", static_cast<double>(bytes) / seconds / 1e9);
}

void OpenProgressLine::show(const OpenProgress& progress) {
  if (progress.stage != stage_) {
    stage_ = progress.stage;
    first_bytes_ = progress.done_bytes;
    stage_start_ = ProgressLine::Clock::now();
  }
  line_.show([&](ProgressLine::Clock::duration) {
    return open_progress(progress, progress.done_bytes - std::min(progress.done_bytes, first_bytes_),
                         ProgressLine::Clock::now() - stage_start_);
  });
}

Model open_with_progress(OpenOptions options, const std::function<Model(const OpenOptions&)>& open) {
  const SignalsWait signals_wait;
  OpenProgressLine line;
  const WarningsClear warnings_clear(line);
  options.cancel = stop_flag();
  options.on_progress = [&line](const OpenProgress& progress) { line.show(progress); };
  if (options.before_loading) {
    options.before_loading = [&line, inner = std::move(options.before_loading)](
                                 const ModelInfo& info, const Tokenizer& tokenizer, const Plan& plan) {
      // It is called once more when the plan has to change in the middle of loading.
      line.clear();
      inner(info, tokenizer, plan);
    };
  }
  return open(options);
}

Model open_with_progress(const std::filesystem::path& path, const OpenOptions& options) {
  return open_with_progress(options, [&](const OpenOptions& with) { return Model::open(path, with); });
}

}  // namespace sluice::cli
