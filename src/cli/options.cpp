#include "cli/options.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "base/units.hpp"
#include "cli/models.hpp"
#include "sluice/version.hpp"

// The only file that sees CLI11, which takes seconds to compile.
namespace sluice::cli {
namespace {

constexpr int k_max_threads = 256;
constexpr const char* k_memory_group = "Memory and drive";
constexpr std::uint32_t k_max_sequences = 1024;
constexpr std::uint32_t k_max_replay_slots = 65'535;
constexpr std::uint32_t k_most_guesses = 64;
constexpr std::uint32_t k_max_bench_tokens = 1u << 24, k_max_bench_repetitions = 1000;

/// The parser together with the variables it writes to.
class Parser {
 public:
  Parser()
      : app_("Runs GGUF language models that are larger than memory by streaming them from the drive.",
             "sluice") {
    app_.set_version_flag("--version", fmt::format("sluice {} ({})", version(), build_facts()),
                          "Print the version and exit");
    app_.require_subcommand(1);
    app_.get_formatter()->column_width(34);
    set_help(app_);
    app_.footer(
        "Exit status: 0 success, 1 an operation failed, 2 the command line is wrong,\n"
        "130 and 143 stopped by Ctrl-C and by a termination signal, 141 the reader of the output went away.\n"
        "Environment: SLUICE_MODELS lists folders with models, separated by colons.\n");
    add_run();
    add_inspect();
    add_perplexity();
    add_synth();
    add_replay();
    add_bench();
    add_profile();
    add_plan();
    add_doctor();
    add_completion();
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
    if (command == "run") return std::move(run_);
    if (command == "inspect") return std::move(inspect_);
    if (command == "perplexity") {
      perplexity_.open.n_ctx = perplexity_.options.n_ctx;
      return std::move(perplexity_);
    }
    if (command == "bench") return std::move(bench_);
    if (command == "profile") return std::move(profile_);
    if (command == "plan") return std::move(plan_);
    if (command == "doctor") return std::move(doctor_);
    if (command == "synth") return std::move(synth_);
    if (command == "replay") return std::move(replay_);
    return std::move(completion_);
  }

  CommandDescription describe() const { return describe(app_); }

 private:
  // --- the commands
  // -------------------------------------------------------------------------------------------

  void add_run() {
    CLI::App& app =
        add_command("run", "Continue a prompt, or chat when there is none and the input is a terminal");
    add_model(app, run_.model);
    const char* group = "Prompt";
    auto* prompt = app.add_option("-p,--prompt", run_.prompt, "Prompt text")->type_name("TEXT")->group(group);
    auto* file =
        is_file(app.add_option("-f,--file", run_.file, "Read the prompt from a file, - for standard input"));
    file->group(group)->excludes(prompt);
    auto* chat =
        app.add_flag("--chat", run_.chat, "Wrap the prompt in the chat form as one message")->group(group);
    auto* raw =
        app.add_flag("--raw", run_.raw, "Never wrap: on a terminal read a prompt until Ctrl-D")->group(group);
    raw->excludes(chat);
    app.add_option("--system", run_.system, "System message of a chat")
        ->type_name("TEXT")
        ->group(group)
        ->excludes(raw);

    group = "Answer";
    GenerateOptions& generate = run_.generate;
    app.add_option("-n,--max-tokens", generate.max_tokens, "Tokens to generate at most, 0: no limit")
        ->type_name("N")
        ->group(group);
    repeatable(app.add_option("--stop", generate.stop, "End the answer before this text (repeatable)"))
        ->type_name("TEXT")
        ->group(group);
    app.add_flag("--ignore-eos", generate.ignore_eos, "Go on after an end token")->group(group);
    app.add_flag("--special", generate.special, "Show control tokens in the text")->group(group);
    app.add_flag("--json", run_.json, "Print one JSON object instead of the text")->group(group);
    add_stats(app, run_.stats)->group(group);
    app.add_flag("-v,--verbose", run_.verbose, "Print the model and its memory plan before the answer")
        ->group(group);

    group = "Sampling";
    SamplerOptions& sampler = generate.sampler;
    number(app, "--temp", sampler.temperature, "Temperature, 0: always the likeliest token", group);
    number(app, "--top-k", sampler.top_k, "Choose among the K likeliest tokens, 0: off", group);
    number(app, "--top-p", sampler.top_p, "Choose among the likeliest tokens with this share, 1: off", group);
    number(app, "--min-p", sampler.min_p, "Leave out tokens below this share of the likeliest, 0: off",
           group);
    number(app, "--repeat-penalty", sampler.repeat_penalty, "Make recent tokens less likely, 1: off", group);
    number(app, "--repeat-window", sampler.repeat_window, "Tokens that count as recent", group);
    number(app, "--seed", sampler.seed, "Seed of the draws, 0: a new one each time", group);
    add_speculation(app, run_.speculation);
    add_open_options(app, run_.open);
    is_file(app.add_option("--trace", run_.trace, "Write which experts each token used, for 'sluice replay'"))
        ->group(k_memory_group);
    is_file(app.add_option(
                "--heat", run_.heat,
                "Where use counts of experts are kept between runs: a file, auto (the cache folder), or "
                "off (default: auto)"))
        ->group(k_memory_group);
  }

  void add_inspect() {
    CLI::App& app =
        add_command("inspect", "Show what a model file holds and where it would lie; loads nothing");
    add_model(app, inspect_.model);
    app.add_flag("--tensors", inspect_.tensors, "List every tensor");
    app.add_flag("--json", inspect_.json, "Print one JSON object");
    add_open_options(app, inspect_.open);
  }

  void add_perplexity() {
    CLI::App& app = add_command("perplexity", "Measure how well a model predicts a text");
    add_model(app, perplexity_.model);
    is_file(app.add_option("-f,--file", perplexity_.file, "The text, - for standard input"))->required();
    number(app, "--ctx", perplexity_.options.n_ctx, "Tokens per window; the second half of each is scored",
           "Options");
    number(app, "--chunks", perplexity_.options.max_chunks, "Windows to compute, 0: all", "Options");
    add_stats(app, perplexity_.stats);
    app.add_flag("--json", perplexity_.json, "Print one JSON object");
    add_open_options(app, perplexity_.open, /*with_context=*/false);
  }

  void add_bench() {
    CLI::App& app = add_command("bench", "Measure prefill and decode, and what bounds them on this machine");
    add_model(app, bench_.model);
    const char* group = "Tests";
    counts(app, "-p,--prompt-tokens", bench_.prompt_tokens,
           "Prompt lengths to prefill, 0: no such test (default: 512)", group);
    count(app, "-n,--generate", bench_.n_generate, 0, k_max_bench_tokens,
          "Tokens to decode one by one, 0: no such test", group);
    counts(app, "-d,--depth", bench_.depths, "Tokens in the context before each test (default: 0)", group);
    count(app, "-r,--repetitions", bench_.n_repetitions, 1, k_max_bench_repetitions,
          "Measured repetitions of each test", group);
    count(app, "--warmup", bench_.n_warmup, 0, k_max_bench_repetitions, "Repetitions before those", group);
    app.add_flag("--json", bench_.json, "Print one JSON object")->group(group);
    add_open_options(app, bench_.open, /*with_context=*/false);
    number(app, "--ctx", bench_.open.n_ctx, "Tokens of context, 0: what the tests need", k_memory_group);
  }

  void add_profile() {
    CLI::App& app =
        add_command("profile", "Measure the drive of a model, memory and kernels, and keep the results");
    CLI::Option* model =
        app.add_option("MODEL", profile_.model,
                       "A model, another large file, or a folder with one; without it no drive is measured");
    model->type_name("");
    models_.push_back(model);
    ProfileOptions& options = profile_.options;
    app.add_option("--seconds", options.seconds, "Time for each drive")
        ->check(CLI::Range(0.1, 600.0).description(""))
        ->type_name("N")
        ->capture_default_str();
    app.add_flag("--refresh", profile_.refresh, "Measure again what was kept");
    app.add_option("--max-age", profile_.max_age_days, "Days after which kept results are measured again")
        ->check(CLI::Range(0.0, 36500.0).description(""))
        ->type_name("N")
        ->capture_default_str();
    add_threads(app, options.n_threads, "Options");
    add_io(app, options.io, "Options");
    app.add_flag("--json", profile_.json, "Print one JSON object");
    app.footer(
        "Results are kept in $XDG_CACHE_HOME/sluice/profile, or below ~/.cache. Drives are only read.\n"
        "Let nothing else run meanwhile.\n");
  }

  void add_plan() {
    CLI::App& app = add_command(
        "plan",
        "Show what would lie where and predict the speed, here or on a simulated machine; loads nothing");
    CLI::Option* model =
        app.add_option("MODEL", plan_.model,
                       "A GGUF file (its header is enough), a built-in model, or a shape of 'sluice synth'");
    model->type_name("")->required();
    models_.push_back(model);
    choice(app.add_option("--type", plan_.type, "Type of a shape's matrices (default: Q4_K_M, a mix)"),
           synth_types());
    app.add_flag("--json", plan_.json, "Print one JSON object");
    const char* group = "Simulated machine";
    size(app, "--sim-ram", plan_.sim_ram_bytes,
         "Plan for a machine with so much memory and nothing else running", group);
    size(app, "--sim-vram", plan_.sim_vram_bytes,
         "Memory of its GPU; counts for nothing, as this version computes on the CPU only", group);
    const auto parse_rate = [this](const double& giga) { plan_.sim_disk = giga * 1e9; };
    app.add_option_function<double>("--sim-disk", parse_rate,
                                    "Rate of its drive in GB/s (10^9 bytes per second)")
        ->check(CLI::Range(0.001, 1000.0).description(""))
        ->type_name("N")
        ->group(group);
    auto* memory =
        repeatable(app.add_option_function<std::vector<std::string>>(
                          "--memory",
                          [this](const std::vector<std::string>& texts) {
                            plan_.budgets.clear();
                            for (const std::string& text : texts)
                              plan_.budgets.push_back(parse_size("--memory", text));
                          },
                          "Budgets to plan with, such as 6G; several are compared (default: what is free)")
                       ->delimiter(','));
    memory->type_name("SIZE[,SIZE]")->group(k_memory_group);
    count(app, "--sequences", plan_.open.max_sequences, 1, k_max_sequences,
          "Sequences that get a KV cache each", k_memory_group);
    add_open_options(app, plan_.open, /*with_context=*/true, /*with_memory=*/false);
    app.footer(
        "Speed is predicted from what 'sluice profile MODEL' measured here. Its limits: "
        "docs/performance.md.\n");
  }

  void add_doctor() {
    CLI::App& app = add_command(
        "doctor", "Look for what makes streaming slow or unsafe on this machine, and say the cure");
    CLI::Option* model = app.add_option("MODEL", doctor_.model,
                                        "A model whose files, drive and speed are to be looked at too");
    model->type_name("");
    models_.push_back(model);
    app.add_flag("--json", doctor_.json, "Print one JSON object");
    add_open_options(app, doctor_.open);
    app.footer("Exit status: 0, or 1 when something is a problem.\n");
  }

  void add_synth() {
    CLI::App& app = add_command(
        "synth", "Write a model file of a real model's shape with random weights, to measure speed with");
    SynthOptions& options = synth_.options;
    std::vector<std::string> shapes;
    std::string shapes_text;
    for (const SynthShape& shape : synth_shapes()) {
      shapes.push_back(shape.name);
      const std::string experts =
          shape.n_experts == 0 ? "dense"
                               : fmt::format("{} of {} experts", shape.n_experts_used, shape.n_experts);
      shapes_text += fmt::format("  {:<17} {:<9} {:>3} layers, {}\n", shape.name, shape.architecture,
                                 shape.n_layers, experts);
    }
    choice(app.add_option("SHAPE", options.shape, "The model to imitate, see below"), shapes)->required();
    is_file(app.add_option("OUT", synth_.file, "The file to write"))->required();
    choice(app.add_option("--type", options.type, "Type of all matrices (default: Q4_K_M, a mix)"),
           synth_types());
    number(app, "--layers", options.n_layers, "Layers to keep, 0: all", "Options");
    number(app, "--seed", options.seed, "Seed of the weights", "Options");
    number(app, "--locality", options.locality,
           "How unevenly experts are used, from 0 (all alike) to 1 (a few most of the time)", "Options");
    app.add_flag("--force", options.overwrite, "Replace a file that exists");
    app.footer("Shapes:\n" + shapes_text);
  }

  void add_replay() {
    CLI::App& app = add_command("replay", "Replay a routing trace against cache policies; needs no model");
    is_file(app.add_option("TRACE", replay_.trace,
                           "A trace of 'sluice run --trace', JSON lines or route_trace CSV"))
        ->required();
    std::vector<std::string> names{"all"};
    for (const ReplayPolicy policy : k_replay_policies) names.emplace_back(replay_policy_name(policy));
    const auto parse = [this](const std::vector<std::string>& texts) {
      for (const std::string& text : texts) {
        for (const ReplayPolicy policy : k_replay_policies) {
          if (text == "all" || text == replay_policy_name(policy)) replay_.policies.push_back(policy);
        }
      }
    };
    choice(repeatable(app.add_option_function<std::vector<std::string>>(
               "--policy", parse, "What to replay against (repeatable, default: all)")),
           names);
    auto* share = repeatable(app.add_option("--share", replay_.percents,
                                            "Percent of all experts that are cached (default: 1 to 50)")
                                 ->delimiter(','));
    share->check(CLI::Range(0.0, 100.0).description(""))->type_name("PERCENT[,PERCENT]");
    auto* slots = repeatable(
        app.add_option("--slots", replay_.slots, "Experts per layer that are cached")->delimiter(','));
    slots->check(CLI::Range(0u, k_max_replay_slots).description(""))->type_name("N[,N]")->excludes(share);
    app.add_option("--warmup", replay_.warm_up,
                   "Tokens at the start that are not counted (default: the prompt, and at least a third)")
        ->type_name("N");
    count(app, "--experts", replay_.n_experts, 0, k_max_replay_slots,
          "Experts per layer of a trace without a header, 0: as many as it shows", "Options");
    app.add_flag("--json", replay_.json, "Print one JSON object");
    app.footer(
        "Only decoded tokens after the warm-up are counted. lfru and lru are what the engine does; "
        "global-lru and\n"
        "cycle share one pool among the layers; belady and global-belady know the future and bound the "
        "others.\n");
  }

  void add_completion() {
    CLI::App& app = add_command("completion", "Print a completion script for a shell");
    choice(app.add_option("SHELL", completion_.shell, "The shell"), {"bash", "zsh", "fish"})->required();
    app.footer(
        "bash: source <(sluice completion bash)\n"
        "zsh:  sluice completion zsh > \"${fpath[1]}/_sluice\"\n"
        "fish: sluice completion fish > ~/.config/fish/completions/sluice.fish\n");
  }

  // --- parts several commands share ------------------------------------------------------------------------

  CLI::App& add_command(const std::string& name, const std::string& description) {
    CLI::App& app = *app_.add_subcommand(name, description);
    set_help(app);
    return app;
  }

  static void set_help(CLI::App& app) { app.set_help_flag("-h,--help", "Print this help and exit"); }

  void add_model(CLI::App& app, std::string& model) {
    std::string names;
    for (const BuiltinModel& builtin : k_builtin_models)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", builtin.name);
    CLI::Option* option =
        app.add_option("MODEL", model, fmt::format("A GGUF file, or a built-in model: {}", names));
    option->type_name("")->required();
    models_.push_back(option);
  }

  void add_speculation(CLI::App& app, SpeculationChoice& choice) {
    using Mode = SpeculationChoice::Mode;
    const char* group = "Speculation (changes no token)";
    one_of(
        app, "--speculate", choice.mode,
        {{"auto", Mode::automatic}, {"off", Mode::off}, {"lookup", Mode::lookup}, {"draft", Mode::draft}},
        "Guess tokens ahead, from the text so far or with --draft, and verify several in one pass when that "
        "is faster (default: auto)",
        group);
    CLI::Option* draft =
        app.add_option("--draft", choice.draft, "A small model with the same vocabulary that guesses tokens");
    draft->type_name("MODEL")->group(group);
    models_.push_back(draft);
    count(app, "--draft-max", choice.max_guesses, 1, k_most_guesses, "Guesses per pass at most", group);
  }

  void add_open_options(CLI::App& app, OpenOptions& open, bool with_context = true, bool with_memory = true) {
    const char* group = k_memory_group;
    if (with_memory)
      size(app, "--memory", open.memory_bytes,
           "Most memory the process may hold, such as 6G (default: what is free)", group);
    if (with_context)
      number(app, "--ctx", open.n_ctx, "Tokens of context, 0: the model's, at most 4096", group);
    number(app, "--chunk", open.prefill_chunk, "Prompt tokens per pass, 0: chosen from the memory", group);
    add_threads(app, open.n_threads, group);
    one_of(app, "--policy", open.policy, {{"lfru", CachePolicy::lfru}, {"lru", CachePolicy::lru}},
           "Which experts stay in a full cache (default: lfru)", group);
    one_of(app, "--look-ahead", open.look_ahead, {{"on", true}, {"off", false}},
           "Read what the next layer will probably use while the drive is idle (default: on)", group);
    add_io(app, open.io, group);
    is_file(app.add_option("--second-copy", open.second_copy,
                           "Another copy of MODEL on another drive, to read from both"))
        ->group(group);
    app.add_option("--pre-tokenizer", open.pre_tokenizer, "Override the file's pre-tokenizer")
        ->type_name("NAME")
        ->group(group);
  }

  static CLI::Option* add_stats(CLI::App& app, std::string& stats) {
    return app
        .add_flag(
            "--stats{totals}", stats,
            "Print memory, drive and speed figures to standard error; --stats=full: of every layer, too")
        ->check(CLI::IsMember({"totals", "full"}));
  }

  static void add_threads(CLI::App& app, int& n_threads, const char* group) {
    app.add_option("--threads", n_threads, "Threads, 0: the cores this process may use")
        ->check(CLI::Range(0, k_max_threads))
        ->type_name("N")
        ->group(group);
  }

  void add_io(CLI::App& app, IoBackend& io, const char* group) {
    one_of(app, "--io", io,
           {{"auto", IoBackend::automatic}, {"uring", IoBackend::uring}, {"pread", IoBackend::pread}},
           "How the drive is read (default: auto)", group);
  }

  template <typename T>
  static void number(CLI::App& app, const char* name, T& value, const char* description, const char* group) {
    app.add_option(name, value, description)->type_name("N")->capture_default_str()->group(group);
  }

  static void count(CLI::App& app, const char* name, std::uint32_t& value, std::uint32_t least,
                    std::uint32_t most, const char* description, const char* group) {
    app.add_option(name, value, description)
        ->check(CLI::Range(least, most).description(""))
        ->type_name("N")
        ->capture_default_str()
        ->group(group);
  }

  void counts(CLI::App& app, const char* name, std::vector<std::uint32_t>& values, const char* description,
              const char* group) {
    repeatable(app.add_option(name, values, description)->delimiter(','))
        ->check(CLI::Range(0u, k_max_bench_tokens).description(""))
        ->type_name("N[,N]")
        ->group(group);
  }

  static void size(CLI::App& app, const std::string& name, std::uint64_t& bytes, const char* description,
                   const char* group) {
    const auto parse = [name, &bytes](const std::string& text) { bytes = parse_size(name, text); };
    app.add_option_function<std::string>(name, parse, description)->type_name("SIZE")->group(group);
  }

  static std::uint64_t parse_size(const std::string& name, const std::string& text) {
    const auto parsed = base::parse_bytes(text);
    if (!parsed || *parsed == 0)
      throw CLI::ValidationError(name, fmt::format("'{}' is not a size such as 24M, 6G or 1.5GiB", text));
    return *parsed;
  }

  template <typename T>
  void one_of(CLI::App& app, const char* name, T& value, const std::vector<std::pair<std::string, T>>& values,
              const char* description, const char* group) {
    std::vector<std::string> names;
    for (const auto& [text, meaning] : values) names.push_back(text);
    const auto parse = [values, &value](const std::string& text) {
      for (const auto& [name_of_value, meaning] : values) {
        if (name_of_value == text) value = meaning;
      }
    };
    choice(app.add_option_function<std::string>(name, parse, description), names)->group(group);
  }

  CLI::Option* choice(CLI::Option* option, const std::vector<std::string>& values) {
    choices_[option] = values;
    option->check(CLI::IsMember(values));
    // The help shows the values behind it.
    return option->type_name("NAME");
  }

  CLI::Option* is_file(CLI::Option* option) {
    files_.push_back(option);
    return option->type_name("FILE");
  }

  CLI::Option* repeatable(CLI::Option* option) {
    repeatable_.push_back(option);
    // One value each time; CLI11 would otherwise take every following word, and split "[a,b]".
    return option->allow_extra_args(false);
  }

  // --- errors and description ------------------------------------------------------------------------------

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

  CommandDescription describe(const CLI::App& app) const {
    CommandDescription command{app.get_name(), app.get_description(), {}, {}};
    for (const CLI::Option* option : app.get_options()) command.arguments.push_back(describe(*option));
    for (const CLI::App* sub : app.get_subcommands({})) command.commands.push_back(describe(*sub));
    return command;
  }

  ArgumentDescription describe(const CLI::Option& option) const {
    const auto listed = [&option](const std::vector<const CLI::Option*>& options) {
      return std::find(options.begin(), options.end(), &option) != options.end();
    };
    ArgumentDescription argument;
    for (const std::string& name : option.get_snames()) argument.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) argument.names.push_back("--" + name);
    argument.description = option.get_description();
    argument.takes_value = option.get_items_expected_max() > 0;
    argument.is_file = listed(files_);
    argument.is_model = listed(models_);
    argument.repeatable = listed(repeatable_);
    if (const auto found = choices_.find(&option); found != choices_.end()) argument.choices = found->second;
    return argument;
  }

  CLI::App app_;
  RunCommand run_;
  InspectCommand inspect_;
  PerplexityCommand perplexity_;
  SynthCommand synth_;
  ReplayCommand replay_;
  BenchCommand bench_;
  ProfileCommand profile_;
  PlanCommand plan_;
  DoctorCommand doctor_;
  CompletionCommand completion_;
  std::vector<const CLI::Option*> models_, files_, repeatable_;
  std::map<const CLI::Option*, std::vector<std::string>> choices_;
};

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  return Parser().parse(argc, argv);
}

CommandDescription describe_command_line() {
  return Parser().describe();
}

}  // namespace sluice::cli
