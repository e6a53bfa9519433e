#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "sluice/generate.hpp"
#include "sluice/options.hpp"
#include "sluice/perplexity.hpp"
#include "sluice/profile.hpp"
#include "sluice/replay.hpp"
#include "sluice/synth.hpp"
#include "sluice/verify.hpp"

namespace sluice::cli {

/// How tokens are guessed ahead.
struct SpeculationChoice {
  enum class Mode { automatic, off, lookup, draft };
  Mode mode = Mode::automatic;
  std::string draft;  ///< A model; empty: none.
  std::uint32_t max_guesses = 16;
};

struct RunCommand {
  std::string model;
  OpenOptions open;
  SpeculationChoice speculation;
  GenerateOptions generate;
  std::optional<std::string> prompt;  ///< -p
  std::optional<std::string> file;    ///< -f, "-" for standard input
  std::optional<std::string> system;
  bool chat = false;
  bool raw = false;
  bool escapes = false;
  std::string stats;  ///< Empty, "totals" or "full".
  bool json = false;
  bool verbose = false;
  std::string trace;          ///< File for the routing; empty: none.
  std::string heat = "auto";  ///< "auto", "off" or a file.
};

struct InspectCommand {
  std::string model;
  OpenOptions open;
  bool tensors = false;
  bool json = false;
};

struct PerplexityCommand {
  std::string model;
  OpenOptions open;
  PerplexityOptions options;
  std::string file;
  std::string stats;  ///< Empty, "totals" or "full".
  bool json = false;
};

struct VerifyCommand {
  std::string model;
  OpenOptions open;
  VerifyOptions options;
  std::string reference;
  double max_kl = 0.01;  ///< Of the mean, in nats per token.
  double min_same_top_percent = 95;
  std::string stats;  ///< Empty, "totals" or "full".
  bool json = false;
};

struct TokenizeCommand {
  std::string model;
  std::string pre_tokenizer;          ///< Empty: the file's.
  std::optional<std::string> prompt;  ///< -p
  std::optional<std::string> file;    ///< -f, "-" for standard input
  bool ids = false;
  bool json = false;
  bool no_special = false;
  bool decode = false;
};

struct BenchCommand {
  std::string model;
  OpenOptions open;                               ///< n_ctx 0: what the tests need.
  std::vector<std::uint32_t> prompt_tokens{512};  ///< 0: no prefill test.
  std::uint32_t n_generate = 64;                  ///< 0: no decode test.
  std::vector<std::uint32_t> depths{0};
  std::uint32_t n_repetitions = 5;
  std::uint32_t n_warmup = 1;
  bool json = false;
};

struct ProfileCommand {
  std::string model;  ///< A model, a file or a folder; empty: no drive.
  ProfileOptions options;
  double max_age_days = 30;  ///< Results that were kept and are no older are not measured again.
  bool refresh = false;      ///< Measure everything.
  bool json = false;
};

struct PlanCommand {
  std::string model;            ///< A model, or a shape of synth.
  std::string type = "Q4_K_M";  ///< Of a shape.
  OpenOptions open;
  std::vector<std::uint64_t> budgets;  ///< Several are compared; empty: the default.
  std::uint64_t sim_ram_bytes = 0;     ///< 0: this machine.
  std::uint64_t sim_vram_bytes = 0;
  double sim_disk_giga = 0;  ///< 10^9 bytes per second; 0: as measured.
  bool json = false;
};

struct DoctorCommand {
  std::string model;  ///< Empty: only the machine.
  OpenOptions open;
  bool json = false;
};

struct SynthCommand {
  std::string file;
  SynthOptions options;
};

struct ReplayCommand {
  std::string trace;
  std::vector<ReplayPolicy> policies;    ///< Empty: all.
  std::vector<double> percents;          ///< Shares of all experts; with `slots` empty, both: the default.
  std::vector<std::uint32_t> slots;      ///< Per layer.
  std::optional<std::uint32_t> warm_up;  ///< Tokens that are not counted.
  std::uint32_t n_experts = 0;           ///< Of a trace that does not say; 0: what it shows.
  bool json = false;
};

struct CompletionCommand {
  std::string shell;
};

/// --help and --version: text for standard output.
struct PrintText {
  std::string text;
};

using Command = std::variant<RunCommand, InspectCommand, PerplexityCommand, VerifyCommand, TokenizeCommand,
                             BenchCommand, ProfileCommand, PlanCommand, DoctorCommand, SynthCommand,
                             ReplayCommand, CompletionCommand, PrintText>;

/// A command line that makes no sense. The message is one line; the program ends with status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the command line. Throws UsageError.
Command parse_command_line(int argc, const char* const* argv);

/// One option or positional argument as the completion scripts need it.
struct ArgumentDescription {
  std::vector<std::string> names;  ///< "-p", "--prompt"; empty for a positional argument.
  std::string description;
  bool takes_value = false;
  bool is_file = false;   ///< The value is a path.
  bool is_model = false;  ///< The value is a path or a built-in name.
  bool repeatable = false;
  std::vector<std::string> choices;  ///< All values it can take; empty when they cannot be listed.
};

struct CommandDescription {
  std::string name;
  std::string description;
  std::vector<ArgumentDescription> arguments;
  std::vector<CommandDescription> commands;
};

/// The whole command line, taken from the same definition that parse_command_line() reads with.
CommandDescription describe_command_line();

}  // namespace sluice::cli
