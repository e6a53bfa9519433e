#include "sluice/synth.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/signals.hpp"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string rate_text(std::uint64_t bytes, Clock::duration duration) {
  const double seconds = std::max(std::chrono::duration<double>(duration).count(), 1e-6);
  return base::format_bytes(static_cast<std::uint64_t>(static_cast<double>(bytes) / seconds)) + "/s";
}

/// A line on the terminal that is written over; nothing elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(Clock::time_point start) : start_(start), is_shown_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (has_text_) print_error_text("\r\x1b[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::uint64_t written_bytes, std::uint64_t file_bytes) {
    if (!is_shown_) return;
    const auto now = Clock::now();
    if (now < next_) return;
    constexpr auto k_interval = std::chrono::milliseconds(200);
    next_ = now + k_interval;
    has_text_ = true;
    print_error_text(fmt::format("\r\x1b[K{} of {} written, {}", base::format_bytes(written_bytes),
                                 base::format_bytes(file_bytes), rate_text(written_bytes, now - start_)));
  }

 private:
  Clock::time_point start_, next_{};
  bool is_shown_;
  bool has_text_ = false;
};

}  // namespace

int synth(const SynthCommand& command, Output& output) {
  catch_stop_signals();
  SynthOptions options = command.options;
  options.cancel = stop_flag();
  const auto start = Clock::now();
  SynthResult result;
  {
    ProgressLine line(start);
    result = synthesize(command.file, options,
                        [&line](std::uint64_t written, std::uint64_t total) { line.show(written, total); });
  }
  const auto duration = Clock::now() - start;
  output.write(fmt::format("{}: {} in {} layers, {} tensors, {:.2f} billion weights; {:.1f} s, {}\n",
                           printable(command.file), base::format_bytes(result.file_bytes), result.n_layers,
                           result.n_tensors, static_cast<double>(result.n_parameters) * 1e-9,
                           std::chrono::duration<double>(duration).count(),
                           rate_text(result.file_bytes, duration)));
  return exit_status(output);
}

}  // namespace sluice::cli
