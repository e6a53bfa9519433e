#include <fmt/core.h>

#include <limits>

#include "cli/option_builder.hpp"

// The commands that look at files, drives and the machine.
namespace sluice::cli {
namespace {

/// The trace's ids of experts are below it.
constexpr std::uint32_t k_max_replay_experts = RoutingTrace::k_not_recorded;

}  // namespace

void add_inspect(OptionBuilder& builder, InspectCommand& command) {
  CLI::App& app =
      builder.command("inspect", "Show what a model file holds and where it would lie; loads nothing");
  builder.model(app, command.model);
  app.add_flag("--tensors", command.tensors, "List every tensor");
  app.add_flag("--json", command.json, "Print one JSON object");
  builder.open_options(app, command.open);
}

void add_tokenize(OptionBuilder& builder, TokenizeCommand& command) {
  CLI::App& app =
      builder.command("tokenize", "Show the tokens of a text, or the text of tokens; loads no weights");
  builder.model(app, command.model);
  auto* text = app.add_option("-p,--prompt", command.prompt, "The text, or with --decode the ids, as it is")
                   ->type_name("TEXT");
  builder.file(app.add_option("-f,--file", command.file, "Read it from a file, - for standard input"))
      ->excludes(text);
  auto* ids = app.add_flag("--ids", command.ids, "Print the ids alone, one a line");
  app.add_flag("--json", command.json, "Print one JSON object");
  app.add_flag("--no-special", command.no_special,
               "Add no token at the start or end and read control tokens in the text as plain text; with "
               "--decode leave control tokens out");
  app.add_flag("--decode", command.decode, "Print the text of ids, which stand between spaces or commas")
      ->excludes(ids);
  builder.pre_tokenizer(app, command.pre_tokenizer, "Options");
  app.footer(
      "Without -p and -f standard input is read. Every byte of the text counts, the newline at its end, "
      "too.\n"
      "Each line shows the id of a token and the bytes that it stands for, control characters as \\xNN.\n");
}

void add_profile(OptionBuilder& builder, ProfileCommand& command) {
  CLI::App& app =
      builder.command("profile", "Measure the drive of a model, memory and kernels, and keep the results");
  builder.model_argument(app, command.model,
                         "A model, another large file, or a folder with one; without it no drive is measured",
                         /*is_required=*/false);
  ProfileOptions& options = command.options;
  builder.decimal(app, "--seconds", options.seconds, {.least = 0.1, .most = 600}, "Time for each drive",
                  "Options");
  app.add_flag("--refresh", command.refresh, "Measure again what was kept");
  builder.decimal(app, "--max-age", command.max_age_days, {.most = 36500},
                  "Days after which kept results are measured again", "Options");
  builder.threads(app, options.n_threads, "Options");
  builder.io(app, options.io, "Options");
  app.add_flag("--json", command.json, "Print one JSON object");
  app.footer(
      "Results are kept in $XDG_CACHE_HOME/sluice/profile, or below ~/.cache. Drives are only read.\n"
      "Let nothing else run meanwhile.\n");
}

void add_plan(OptionBuilder& builder, PlanCommand& command) {
  CLI::App& app = builder.command(
      "plan",
      "Show what would lie where and predict the speed, here or on a simulated machine; loads nothing");
  builder.model_argument(app, command.model,
                         "A GGUF file (its header is enough), a built-in model, or a shape of 'sluice synth'",
                         /*is_required=*/true);
  builder.choice(
      app.add_option("--type", command.type, "Type of a shape's matrices (default: Q4_K_M, a mix)"),
      synth_types());
  app.add_flag("--json", command.json, "Print one JSON object");
  const char* group = "Simulated machine";
  builder.size(app, "--sim-ram", command.sim_ram_bytes,
               "Plan for a machine with so much memory and nothing else running", group);
  builder.size(app, "--sim-vram", command.sim_vram_bytes,
               "Memory of its GPU; counts for nothing, as this version computes on the CPU only", group);
  builder
      .decimal(app, "--sim-disk", command.sim_disk_giga, {.least = 0.001, .most = 1000},
               "Rate of its drive in GB/s (10^9 bytes per second)", group)
      ->default_str("");
  builder.sizes(app, "--memory", command.budgets,
                "Budgets to plan with, such as 6G; several are compared (default: what is free)",
                k_memory_group);
  builder.whole(app, "--sequences", command.open.max_sequences, {.least = 1, .most = k_max_sequences},
                "Sequences that get a KV cache each", k_memory_group);
  builder.open_options(app, command.open, /*with_context=*/true, /*with_memory=*/false);
  app.footer(
      "Speed is predicted from what 'sluice profile MODEL' measured here. Its limits: "
      "docs/performance.md.\n");
}

void add_doctor(OptionBuilder& builder, DoctorCommand& command) {
  CLI::App& app = builder.command(
      "doctor", "Look for what makes streaming slow or unsafe on this machine, and say the cure");
  builder.model_argument(app, command.model, "A model whose files, drive and speed are to be looked at too",
                         /*is_required=*/false);
  app.add_flag("--json", command.json, "Print one JSON object");
  builder.open_options(app, command.open);
  app.footer("Exit status: 0, or 1 when something is a problem.\n");
}

void add_synth(OptionBuilder& builder, SynthCommand& command) {
  CLI::App& app = builder.command(
      "synth", "Write a model file of a real model's shape with random weights, to measure speed with");
  SynthOptions& options = command.options;
  std::vector<std::string> shapes;
  std::string shapes_text;
  for (const SynthShape& shape : synth_shapes()) {
    shapes.push_back(shape.name);
    const std::string experts = shape.n_experts == 0
                                    ? "dense"
                                    : fmt::format("{} of {} experts", shape.n_experts_used, shape.n_experts);
    shapes_text += fmt::format("  {:<17} {:<9} {:>3} layers, {}\n", shape.name, shape.architecture,
                               shape.n_layers, experts);
  }
  builder.choice(app.add_option("SHAPE", options.shape, "The model to imitate, see below"), shapes)
      ->required();
  builder.file(app.add_option("OUT", command.file, "The file to write"))->required();
  builder.choice(app.add_option("--type", options.type, "Type of all matrices (default: Q4_K_M, a mix)"),
                 synth_types());
  builder.whole(app, "--layers", options.n_layers, {.zero = "all"}, "Layers to keep", "Options");
  builder.whole(app, "--seed", options.seed, {.most = std::numeric_limits<std::uint64_t>::max()},
                "Seed of the weights", "Options");
  builder.decimal(app, "--locality", options.locality, {.most = 1},
                  "How unevenly experts are used, from 0 (all alike) to 1 (a few most of the time)",
                  "Options");
  app.add_flag("--force", options.overwrite, "Replace a file that exists");
  app.footer("Shapes:\n" + shapes_text);
}

void add_replay(OptionBuilder& builder, ReplayCommand& command) {
  CLI::App& app = builder.command("replay", "Replay a routing trace against cache policies; needs no model");
  builder
      .file(app.add_option("TRACE", command.trace,
                           "A trace of 'sluice run --trace', JSON lines or route_trace CSV"))
      ->required();
  std::vector<std::string> names{"all"};
  for (const ReplayPolicy policy : k_replay_policies) names.emplace_back(replay_policy_name(policy));
  const auto parse = [&command](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      for (const ReplayPolicy policy : k_replay_policies) {
        if (text == "all" || text == replay_policy_name(policy)) command.policies.push_back(policy);
      }
    }
  };
  builder.choice(builder.repeatable(app.add_option_function<std::vector<std::string>>(
                     "--policy", parse, "What to replay against (repeatable, default: all)")),
                 names);
  auto* share = builder.decimals(app, "--share", command.percents, {.most = 100},
                                 "Percent of all experts that are cached (default: 1 to 50)", "Options");
  share->type_name("PERCENT[,PERCENT]");
  builder
      .wholes(app, "--slots", command.slots, {.most = k_max_replay_experts},
              "Experts per layer that are cached", "Options")
      ->excludes(share);
  builder.whole(app, "--warmup", command.warm_up, {},
                "Tokens at the start that are not counted (default: the prompt, and at least a third)",
                "Options");
  builder.whole(app, "--experts", command.n_experts,
                {.most = k_max_replay_experts, .zero = "as many as it shows"},
                "Experts per layer of a trace without a header", "Options");
  app.add_flag("--json", command.json, "Print one JSON object");
  app.footer(
      "Only decoded tokens after the warm-up are counted. lfru and lru are what the engine does; "
      "global-lru and\n"
      "cycle share one pool among the layers; belady and global-belady know the future and bound the "
      "others.\n");
}

void add_completion(OptionBuilder& builder, CompletionCommand& command) {
  CLI::App& app = builder.command("completion", "Print a completion script for a shell");
  builder.choice(app.add_option("SHELL", command.shell, "The shell"), {"bash", "zsh", "fish"})->required();
  app.footer(
      "bash: source <(sluice completion bash)\n"
      "zsh:  sluice completion zsh > \"${fpath[1]}/_sluice\"\n"
      "fish: sluice completion fish > ~/.config/fish/completions/sluice.fish\n");
}

}  // namespace sluice::cli
