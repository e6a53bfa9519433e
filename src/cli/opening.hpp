#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "cli/progress_line.hpp"
#include "sluice/model.hpp"

namespace sluice::cli {

/// Shows how far opening a model is, where that takes more than half a second.
class OpenProgressLine {
 public:
  void show(const OpenProgress& progress);
  void clear() { line_.clear(); }

 private:
  ProgressLine line_{std::chrono::milliseconds(500)};
  std::optional<OpenStage> stage_;
  std::uint64_t first_bytes_ = 0;  ///< Done when the stage began.
  ProgressLine::Clock::time_point stage_start_;
};

/// "reading weights: 43 % of 12.3 GiB, 1.21 GB/s": the last `bytes` of what is done took `duration`.
std::string open_progress(const OpenProgress& progress, std::uint64_t bytes,
                          ProgressLine::Clock::duration duration);

/// Calls `open`, which opens a model with the options that it gets: `options` with a line of progress and
/// with stop signals as cancellation: one ends the program as soon as the opening has ended and the
/// terminal's line is clean. Warnings meanwhile have lines of their own.
Model open_with_progress(OpenOptions options, const std::function<Model(const OpenOptions&)>& open);
/// Of a model as it is.
Model open_with_progress(const std::filesystem::path& path, const OpenOptions& options);

}  // namespace sluice::cli
