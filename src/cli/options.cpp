#include "cli/options.hpp"

#include <fmt/core.h>

#include "cli/escapes.hpp"
#include "cli/option_builder.hpp"
#include "sluice/version.hpp"

namespace sluice::cli {
namespace {

/// The parser together with the variables it writes to.
class Parser {
 public:
  Parser()
      : app_("Runs GGUF language models that are larger than memory by streaming them from the drive.",
             "sluice"),
        builder_(app_) {
    app_.set_version_flag("--version", fmt::format("sluice {} ({})", version(), build_facts()),
                          "Print the version and exit");
    app_.require_subcommand(1);
    app_.get_formatter()->column_width(34);
    OptionBuilder::set_help(app_);
    app_.footer(
        "Exit status: 0 success, 1 an operation failed, 2 the command line is wrong,\n"
        "130 and 143 stopped by Ctrl-C and by a termination signal, 141 the reader of the output went away.\n"
        "Environment: SLUICE_MODELS lists folders with models, separated by colons.\n");
    add_run(builder_, run_);
    add_inspect(builder_, inspect_);
    add_perplexity(builder_, perplexity_);
    add_verify(builder_, verify_);
    add_tokenize(builder_, tokenize_);
    add_synth(builder_, synth_);
    add_replay(builder_, replay_);
    add_bench(builder_, bench_);
    add_profile(builder_, profile_);
    add_plan(builder_, plan_);
    add_doctor(builder_, doctor_);
    add_completion(builder_, completion_);
  }

  Command parse(int argc, const char* const* argv) {
    // CLI11 would only say that a subcommand is required.
    if (argc > 1 && argv[1][0] != '-' && !is_command(argv[1])) {
      throw UsageError(fmt::format("there is no command '{}'; see 'sluice --help'", argv[1]));
    }
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      return PrintText{app_.help()};
    } catch (const CLI::CallForVersion& call) {
      return PrintText{std::string(call.what()) + "\n"};
    } catch (const CLI::ParseError& error) {
      throw UsageError(fmt::format("{}; see '{} --help'", one_line(error.what()), command_in_use()));
    }
    const std::string command = app_.get_subcommands().front()->get_name();
    if (command == "run") {
      if (run_.escapes) read_escapes();
      return std::move(run_);
    }
    if (command == "inspect") return std::move(inspect_);
    if (command == "perplexity") {
      perplexity_.open.n_ctx = perplexity_.options.n_ctx;
      return std::move(perplexity_);
    }
    if (command == "verify") return std::move(verify_);
    if (command == "tokenize") return std::move(tokenize_);
    if (command == "bench") return std::move(bench_);
    if (command == "profile") return std::move(profile_);
    if (command == "plan") return std::move(plan_);
    if (command == "doctor") return std::move(doctor_);
    if (command == "synth") return std::move(synth_);
    if (command == "replay") return std::move(replay_);
    return std::move(completion_);
  }

  CommandDescription describe() const { return builder_.describe(); }

 private:
  void read_escapes() {
    if (run_.prompt) run_.prompt = unescape(*run_.prompt);
    if (run_.system) run_.system = unescape(*run_.system);
    for (std::string& stop : run_.generate.stop) stop = unescape(stop);
  }

  bool is_command(const std::string& name) const {
    const auto commands = app_.get_subcommands({});
    return std::any_of(commands.begin(), commands.end(),
                       [&name](const CLI::App* app) { return app->get_name() == name; });
  }

  std::string command_in_use() const {
    const auto used = app_.get_subcommands();
    return used.empty() ? "sluice" : "sluice " + used.front()->get_name();
  }

  static std::string one_line(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  CLI::App app_;
  OptionBuilder builder_;
  RunCommand run_;
  InspectCommand inspect_;
  PerplexityCommand perplexity_;
  VerifyCommand verify_;
  TokenizeCommand tokenize_;
  SynthCommand synth_;
  ReplayCommand replay_;
  BenchCommand bench_;
  ProfileCommand profile_;
  PlanCommand plan_;
  DoctorCommand doctor_;
  CompletionCommand completion_;
};

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  return Parser().parse(argc, argv);
}

CommandDescription describe_command_line() {
  return Parser().describe();
}

}  // namespace sluice::cli
