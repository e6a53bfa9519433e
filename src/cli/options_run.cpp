#include <limits>

#include "cli/option_builder.hpp"
#include "sluice/sampler.hpp"
#include "sluice/speculate.hpp"

// The commands that compute with a model.
namespace sluice::cli {
namespace {

constexpr double k_no_limit = std::numeric_limits<float>::max();
constexpr std::uint32_t k_max_bench_tokens = 1u << 24, k_max_bench_repetitions = 1000;

void add_prompt(OptionBuilder& builder, CLI::App& app, RunCommand& command) {
  const char* group = "Prompt";
  auto* prompt = app.add_option("-p,--prompt", command.prompt, "Prompt text, as it is")->type_name("TEXT");
  auto* file = builder.file(app.add_option("-f,--file", command.file,
                                           "Read the prompt from a file, - for standard input (see below)"));
  auto* chat = app.add_flag("--chat", command.chat, "Wrap the prompt in the chat form as one message");
  auto* raw = app.add_flag("--raw", command.raw, "Never wrap: on a terminal read a prompt until Ctrl-D");
  auto* system = app.add_option("--system", command.system, "System message of a chat")->type_name("TEXT");
  auto* escapes =
      app.add_flag("-e,--escapes", command.escapes,
                   "In -p, --system and --stop read \\n, \\t, \\r, \\\\, \\\", \\' and \\xNN as characters");
  for (CLI::Option* option : {prompt, file, chat, raw, system, escapes}) option->group(group);
  file->excludes(prompt);
  raw->excludes(chat);
  system->excludes(raw);
}

void add_answer(OptionBuilder& builder, CLI::App& app, RunCommand& command) {
  const char* group = "Answer";
  GenerateOptions& generate = command.generate;
  builder.whole(app, "-n,--max-tokens", generate.max_tokens, {.zero = "no limit, as is -1", .minus_one = 0},
                "Tokens to generate at most", group);
  builder
      .repeatable(app.add_option("--stop", generate.stop,
                                 "End the answer before this text, as it is (repeatable; -e for \\n)"))
      ->type_name("TEXT")
      ->group(group);
  app.add_flag("--ignore-eos", generate.ignore_eos, "Go on after an end token")->group(group);
  app.add_flag("--special", generate.special, "Show control tokens in the text")->group(group);
  app.add_flag("--json", command.json, "Print one JSON object instead of the text")->group(group);
  builder.stats(app, command.stats)->group(group);
  app.add_flag("-v,--verbose", command.verbose, "Print the model and its memory plan before the answer")
      ->group(group);
}

void add_sampling(OptionBuilder& builder, CLI::App& app, SamplerOptions& sampler) {
  const char* group = "Sampling";
  builder.decimal(app, "--temp", sampler.temperature,
                  {.most = k_no_limit, .zero = "always the likeliest token"}, "Temperature", group);
  builder.whole(app, "--top-k", sampler.top_k, {.zero = "off"}, "Choose among the K likeliest tokens", group);
  builder.decimal(app, "--top-p", sampler.top_p, {.most = 1},
                  "Choose among the likeliest tokens with this share, 1: off", group);
  builder.decimal(app, "--min-p", sampler.min_p, {.most = 1, .zero = "off"},
                  "Leave out tokens below this share of the likeliest", group);
  builder.decimal(app, "--repeat-penalty", sampler.repeat_penalty, {.most = k_no_limit, .above = true},
                  "Make recent tokens less likely, 1: off", group);
  builder.whole(
      app, "--repeat-window", sampler.repeat_window,
      {.most = k_max_repeat_window, .zero = "none, -1: the whole context", .minus_one = k_max_repeat_window},
      "Tokens that count as recent", group);
  builder.whole(app, "--seed", sampler.seed,
                {.most = k_max_json_number, .zero = "a new one each time, as is -1", .minus_one = 0},
                "Seed of the draws", group);
}

void add_speculation(OptionBuilder& builder, CLI::App& app, SpeculationChoice& choice) {
  using Mode = SpeculationChoice::Mode;
  const char* group = "Speculation (changes no token)";
  builder.one_of<Mode>(
      app, "--speculate", choice.mode,
      {{"auto", Mode::automatic}, {"off", Mode::off}, {"lookup", Mode::lookup}, {"draft", Mode::draft}},
      "Guess tokens ahead, from the text so far or with --draft, and verify several in one pass when that "
      "is faster (default: auto)",
      group);
  builder.draft_argument(app, choice.draft, group);
  builder.whole(app, "--draft-max", choice.max_guesses, {.least = 1, .most = k_max_guesses},
                "Guesses per pass at most", group);
}

}  // namespace

void add_run(OptionBuilder& builder, RunCommand& command) {
  CLI::App& app =
      builder.command("run", "Continue a prompt, or chat when there is none and the input is a terminal");
  builder.model(app, command.model);
  add_prompt(builder, app, command);
  add_answer(builder, app, command);
  add_sampling(builder, app, command.generate.sampler);
  add_speculation(builder, app, command.speculation);
  builder.open_options(app, command.open);
  builder
      .file(app.add_option("--trace", command.trace,
                           "Write which experts each token used, for 'sluice replay'"))
      ->group(k_memory_group);
  builder
      .file(app.add_option(
          "--heat", command.heat,
          "Where use counts of experts are kept between runs: a file, auto (the cache folder), or "
          "off (default: auto)"))
      ->group(k_memory_group);
  app.footer(
      "Of a prompt from a file or standard input, a UTF-8 mark at the start and one newline at the end are\n"
      "dropped, and Windows' line ends become newlines; all other bytes count. On a terminal control\n"
      "characters of the answer are shown as \\xNN; into a pipe or file they go as they are.\n");
}

void add_perplexity(OptionBuilder& builder, PerplexityCommand& command) {
  CLI::App& app = builder.command("perplexity", "Measure how well a model predicts a text");
  builder.model(app, command.model);
  builder.file(app.add_option("-f,--file", command.file, "The text, - for standard input"))->required();
  builder.whole(app, "--ctx", command.options.n_ctx, {.least = 1},
                "Tokens per window; the second half of each is scored", "Options");
  builder.whole(app, "--chunks", command.options.max_chunks, {.zero = "all"}, "Windows to compute",
                "Options");
  builder.stats(app, command.stats);
  app.add_flag("--json", command.json, "Print one JSON object");
  builder.open_options(app, command.open, /*with_context=*/false);
}

void add_verify(OptionBuilder& builder, VerifyCommand& command) {
  CLI::App& app =
      builder.command("verify", "Compare a model with what another program computed of the same file");
  builder.model(app, command.model);
  builder.file(app.add_option("--reference", command.reference, "The file that the other program wrote"))
      ->required();
  const char* group = "Options";
  builder.whole(app, "--chunks", command.options.max_chunks, {.zero = "all"}, "Windows to compute", group);
  builder.decimal(app, "--max-kl", command.max_kl, {.most = k_no_limit},
                  "Largest mean divergence that is taken as equal, in nats per token", group);
  builder.decimal(app, "--min-same-top", command.min_same_top_percent, {.most = 100},
                  "Least percentage of places where both hold the same token to be the likeliest", group);
  builder.stats(app, command.stats);
  app.add_flag("--json", command.json, "Print one JSON object");
  builder.open_options(app, command.open, /*with_context=*/false);
  app.footer(
      "llama-perplexity writes a reference when it computes perplexity with its option kl-divergence-base.\n"
      "The defaults fit quantized weights, which both programs multiply with rounded numbers; F32 files\n"
      "agree far better.\n"
      "Exit status: 0 within the limits, 1 beyond them or when something failed.\n");
}

void add_bench(OptionBuilder& builder, BenchCommand& command) {
  CLI::App& app =
      builder.command("bench", "Measure prefill and decode, and what bounds them on this machine");
  builder.model(app, command.model);
  const char* group = "Tests";
  const WholeRange tokens{.most = k_max_bench_tokens, .zero = "no such test"};
  builder.wholes(app, "-p,--prompt-tokens", command.prompt_tokens, tokens,
                 "Prompt lengths to prefill, 0: no such test (default: 512)", group);
  builder.whole(app, "-n,--generate", command.n_generate, tokens, "Tokens to decode one by one", group);
  builder.wholes(app, "-d,--depth", command.depths, {.most = k_max_bench_tokens},
                 "Tokens in the context before each test (default: 0)", group);
  builder.whole(app, "-r,--repetitions", command.n_repetitions, {.least = 1, .most = k_max_bench_repetitions},
                "Measured repetitions of each test", group);
  builder.whole(app, "--warmup", command.n_warmup, {.most = k_max_bench_repetitions},
                "Repetitions before those", group);
  app.add_flag("--json", command.json, "Print one JSON object")->group(group);
  builder.open_options(app, command.open, /*with_context=*/false);
  builder.whole(app, "--ctx", command.open.n_ctx, {.zero = "what the tests need"}, "Tokens of context",
                k_memory_group);
}

}  // namespace sluice::cli
