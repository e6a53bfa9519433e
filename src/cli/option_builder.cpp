#include "cli/option_builder.hpp"

#include <fmt/core.h>

#include "base/units.hpp"
#include "cli/models.hpp"

namespace sluice::cli {
namespace {

/// "-n,--max-tokens" is "--max-tokens" to the user.
std::string long_name(const char* names) {
  const std::string text = names;
  const std::size_t comma = text.find(',');
  return comma == std::string::npos ? text : text.substr(comma + 1);
}

}  // namespace

CLI::App& OptionBuilder::command(const std::string& name, const std::string& description) {
  CLI::App& app = *app_.add_subcommand(name, description);
  set_help(app);
  return app;
}

void OptionBuilder::model(CLI::App& app, std::string& model) {
  std::string names;
  for (const BuiltinModel& builtin : k_builtin_models)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", builtin.name);
  model_argument(app, model, fmt::format("A GGUF file, or a built-in model: {}", names),
                 /*is_required=*/true);
}

void OptionBuilder::model_argument(CLI::App& app, std::string& model, const std::string& description,
                                   bool is_required) {
  CLI::Option* option = app.add_option("MODEL", model, description);
  option->type_name("")->required(is_required);
  models_.push_back(option);
}

void OptionBuilder::draft_argument(CLI::App& app, std::string& model, const char* group) {
  CLI::Option* option =
      app.add_option("--draft", model, "A small model with the same vocabulary that guesses tokens");
  option->type_name("MODEL")->group(group);
  models_.push_back(option);
}

void OptionBuilder::open_options(CLI::App& app, OpenOptions& open, bool with_context, bool with_memory) {
  const char* group = k_memory_group;
  if (with_memory)
    size(app, "--memory", open.memory_bytes,
         "Most memory the process may hold, such as 6G (default: what is free)", group);
  if (with_context)
    whole(app, "--ctx", open.n_ctx, {.zero = "the model's, at most 4096"}, "Tokens of context", group);
  whole(app, "--chunk", open.prefill_chunk, {.most = k_max_prefill_chunk, .zero = "chosen from the memory"},
        "Prompt tokens per pass", group);
  one_of(app, "--kv-type", open.kv_type, {{"f16", KvType::f16}, {"q8_0", KvType::q8_0}},
         "How keys and values are kept: q8_0 takes about half of f16 (default: f16)", group);
  threads(app, open.n_threads, group);
  app.add_option_function<std::string>(
         "--gpu",
         [&open](const std::string& text) {
           open.gpu =
               text == "off" ? -1 : static_cast<int>(checked_whole("--gpu", text, {.most = 63, .zero = ""}));
         },
         "The GPU that computes, by its number, for models that fit its memory whole (default: off)")
      ->type_name("off|N")
      ->group(group);
  one_of(app, "--policy", open.policy, {{"lfru", CachePolicy::lfru}, {"lru", CachePolicy::lru}},
         "Which experts stay in a full cache (default: lfru)", group);
  one_of(app, "--look-ahead", open.look_ahead, {{"on", true}, {"off", false}},
         "Read what the next layer will probably use while the drive is idle (default: on)", group);
  io(app, open.io, group);
  file(app.add_option("--second-copy", open.second_copy,
                      "Another copy of MODEL on another drive, to read from both"))
      ->group(group);
  pre_tokenizer(app, open.pre_tokenizer, group);
}

void OptionBuilder::pre_tokenizer(CLI::App& app, std::string& name, const char* group) {
  app.add_option("--pre-tokenizer", name, "Override the file's pre-tokenizer")
      ->type_name("NAME")
      ->group(group);
}

CLI::Option* OptionBuilder::stats(CLI::App& app, std::string& stats) {
  return app
      .add_flag("--stats{totals}", stats,
                "Print memory, drive and speed figures to standard error; --stats=full: of every layer, too")
      ->check(CLI::IsMember({"totals", "full"}));
}

void OptionBuilder::threads(CLI::App& app, int& n_threads, const char* group) {
  whole(app, "--threads", n_threads, {.most = k_max_threads, .zero = "the cores this process may use"},
        "Threads", group);
}

void OptionBuilder::io(CLI::App& app, IoBackend& io, const char* group) {
  one_of(app, "--io", io,
         {{"auto", IoBackend::automatic}, {"uring", IoBackend::uring}, {"pread", IoBackend::pread}},
         "How the drive is read (default: auto)", group);
}

CLI::Option* OptionBuilder::decimals(CLI::App& app, const char* name, std::vector<double>& values,
                                     const DecimalRange& range, const char* description, const char* group) {
  const auto parse = [range, &values, name](const std::vector<std::string>& texts) {
    values.clear();
    for (const std::string& text : texts) values.push_back(checked_decimal(name, text, range));
  };
  return list_option(app, name, parse, description, group);
}

void OptionBuilder::size(CLI::App& app, const char* name, std::uint64_t& bytes, const char* description,
                         const char* group) {
  const auto parse = [name, &bytes](const std::string& text) { bytes = checked_size(name, text); };
  app.add_option_function<std::string>(name, parse, description)->type_name("SIZE")->group(group);
}

void OptionBuilder::sizes(CLI::App& app, const char* name, std::vector<std::uint64_t>& bytes,
                          const char* description, const char* group) {
  const auto parse = [name, &bytes](const std::vector<std::string>& texts) {
    bytes.clear();
    for (const std::string& text : texts) bytes.push_back(checked_size(name, text));
  };
  list_option(app, name, parse, description, group)->type_name("SIZE[,SIZE]");
}

CLI::Option* OptionBuilder::choice(CLI::Option* option, const std::vector<std::string>& values) {
  choices_[option] = values;
  option->check(CLI::IsMember(values));
  // The help shows the values behind it.
  return option->type_name("NAME");
}

CLI::Option* OptionBuilder::file(CLI::Option* option) {
  files_.push_back(option);
  return option->type_name("FILE");
}

CLI::Option* OptionBuilder::repeatable(CLI::Option* option) {
  repeatable_.push_back(option);
  // One value each time; CLI11 would otherwise take every following word, and split "[a,b]".
  return option->allow_extra_args(false);
}

std::uint64_t OptionBuilder::checked_whole(const char* name, const std::string& text,
                                           const WholeRange& range) {
  try {
    return parse_whole(text, range);
  } catch (const UsageError& error) {
    throw CLI::ValidationError(long_name(name), error.what());
  }
}

double OptionBuilder::checked_decimal(const char* name, const std::string& text, const DecimalRange& range) {
  try {
    return parse_decimal(text, range);
  } catch (const UsageError& error) {
    throw CLI::ValidationError(long_name(name), error.what());
  }
}

std::uint64_t OptionBuilder::checked_size(const char* name, const std::string& text) {
  const auto parsed = base::parse_bytes(text);
  if (!parsed || *parsed == 0)
    throw CLI::ValidationError(name, fmt::format("'{}' is not a size such as 24M, 6G or 1.5GiB", text));
  return *parsed;
}

std::string OptionBuilder::fmt_number(double value) {
  // Six digits: 0.8 as a float is not 0.8 as a double.
  return fmt::format("{:g}", value);
}

CLI::Option* OptionBuilder::number_option(CLI::App& app, const char* name,
                                          const std::function<void(const std::string&)>& parse,
                                          const std::string& default_text, const char* description,
                                          std::string_view zero, const char* group) {
  const std::string text =
      zero.empty() ? std::string(description) : fmt::format("{}, 0: {}", description, zero);
  return app.add_option_function<std::string>(name, parse, text)
      ->type_name("N")
      ->default_str(default_text)
      ->take_last()
      ->group(group);
}

CLI::Option* OptionBuilder::list_option(CLI::App& app, const char* name, const TextsParser& parse,
                                        const char* description, const char* group) {
  CLI::Option* option = app.add_option_function<std::vector<std::string>>(name, parse, description);
  repeatable(option->delimiter(','))->group(group);
  return option;
}

CommandDescription OptionBuilder::describe(const CLI::App& app) const {
  CommandDescription command{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) command.arguments.push_back(describe(*option));
  for (const CLI::App* sub : app.get_subcommands({})) command.commands.push_back(describe(*sub));
  return command;
}

ArgumentDescription OptionBuilder::describe(const CLI::Option& option) const {
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

}  // namespace sluice::cli
