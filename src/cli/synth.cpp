#include "sluice/synth.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/progress_line.hpp"
#include "cli/signals.hpp"

namespace sluice::cli {
namespace {

using Clock = ProgressLine::Clock;

std::string rate_text(std::uint64_t bytes, Clock::duration duration) {
  const double seconds = std::max(std::chrono::duration<double>(duration).count(), 1e-6);
  return base::format_bytes(static_cast<std::uint64_t>(static_cast<double>(bytes) / seconds)) + "/s";
}

}  // namespace

int synth(const SynthCommand& command, Output& output) {
  catch_stop_signals();
  SynthOptions options = command.options;
  options.cancel = stop_flag();
  const auto start = Clock::now();
  SynthResult result;
  {
    ProgressLine line;
    result = synthesize(command.file, options, [&line](std::uint64_t written, std::uint64_t total) {
      line.show([&](Clock::duration duration) {
        return fmt::format("{} of {} written, {}", base::format_bytes(written), base::format_bytes(total),
                           rate_text(written, duration));
      });
    });
  }
  const auto duration = Clock::now() - start;
  output.print(fmt::format("{}: {} in {} layers, {} tensors, {:.2f} billion weights; {:.1f} s, {}\n",
                           base::printable(command.file), base::format_bytes(result.file_bytes),
                           result.n_layers, result.n_tensors, static_cast<double>(result.n_parameters) * 1e-9,
                           std::chrono::duration<double>(duration).count(),
                           rate_text(result.file_bytes, duration)));
  return exit_status(output);
}

}  // namespace sluice::cli
