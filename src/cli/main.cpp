#include <fmt/core.h>

#include <exception>
#include <new>
#include <string_view>
#include <variant>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/completion.hpp"
#include "cli/output.hpp"
#include "cli/signals.hpp"
#include "sluice/error.hpp"
#include "sluice/warnings.hpp"

namespace sluice::cli {

int exit_status(const Output& output) {
  output.check();
  if (const int signal = stop_signal()) return 128 + signal;
  return output.state() == Output::State::closed ? k_exit_closed_output : k_exit_ok;
}

namespace {

/// The memory budget counts every page of the process, so freed memory goes back to the system at once, and
/// threads share one heap instead of keeping one each.
void keep_heap_small() noexcept {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 64 * 1024);
  mallopt(M_TRIM_THRESHOLD, 64 * 1024);
  mallopt(M_TOP_PAD, 0);
#endif
}

int report(std::string_view message, int status) {
  print_error_text(fmt::format("sluice: error: {}\n", base::printable(message)));
  return status;
}

int execute(int argc, const char* const* argv, Output& output) {
  // The parser and all it holds is gone before a model is opened.
  const Command command = parse_command_line(argc, argv);
  if (const auto* chosen = std::get_if<RunCommand>(&command)) return run(*chosen, output);
  if (const auto* chosen = std::get_if<InspectCommand>(&command)) return inspect(*chosen, output);
  if (const auto* chosen = std::get_if<PerplexityCommand>(&command)) return perplexity(*chosen, output);
  if (const auto* chosen = std::get_if<VerifyCommand>(&command)) return verify(*chosen, output);
  if (const auto* chosen = std::get_if<TokenizeCommand>(&command)) return tokenize(*chosen, output);
  if (const auto* chosen = std::get_if<SynthCommand>(&command)) return synth(*chosen, output);
  if (const auto* chosen = std::get_if<ReplayCommand>(&command)) return replay(*chosen, output);
  if (const auto* chosen = std::get_if<BenchCommand>(&command)) return bench(*chosen, output);
  if (const auto* chosen = std::get_if<ProfileCommand>(&command)) return profile(*chosen, output);
  if (const auto* chosen = std::get_if<PlanCommand>(&command)) return plan(*chosen, output);
  if (const auto* chosen = std::get_if<DoctorCommand>(&command)) return doctor(*chosen, output);
  if (const auto* chosen = std::get_if<CompletionCommand>(&command)) {
    output.write(completion_script(chosen->shell, describe_command_line()));
  } else {
    output.write(std::get<PrintText>(command).text);
  }
  return exit_status(output);
}

int guarded(int argc, const char* const* argv) noexcept {
  Output output;
  try {
    set_warning_sink(print_warning);
    return execute(argc, argv, output);
  } catch (const UsageError& error) {
    return report(error.what(), k_exit_usage);
  } catch (const Error& error) {
    output.end_line();
    if (error.code() == ErrorCode::cancelled && stop_signal() != 0) return 128 + stop_signal();
    return report(error.what(), k_exit_error);
  } catch (const std::bad_alloc&) {
    print_error_text("sluice: error: out of memory: the system refused an allocation\n");
    return k_exit_error;
  } catch (const std::exception& error) {
    return report(error.what(), k_exit_error);
  } catch (...) {
    return report("an unknown exception", k_exit_error);
  }
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  sluice::cli::keep_heap_small();
  sluice::cli::reserve_standard_descriptors();
  sluice::cli::ignore_broken_pipes();
  sluice::cli::handle_stop_signals();
  return sluice::cli::guarded(argc, argv);
}
