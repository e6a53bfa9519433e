#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/numbers.hpp"
#include "cli/options.hpp"

// Only the files that define options include this: CLI11 takes seconds to compile.
namespace sluice::cli {

inline constexpr const char* k_memory_group = "Memory and drive";

/// Defines commands and options of one program, and remembers what the completion scripts need to know of
/// them.
class OptionBuilder {
 public:
  explicit OptionBuilder(CLI::App& app) : app_(app) {}

  static void set_help(CLI::App& app) { app.set_help_flag("-h,--help", "Print this help and exit"); }
  CLI::App& command(const std::string& name, const std::string& description);

  // Options that several commands share.
  void model(CLI::App& app, std::string& model);
  void model_argument(CLI::App& app, std::string& model, const std::string& description, bool is_required);
  void draft_argument(CLI::App& app, std::string& model, const char* group);
  void open_options(CLI::App& app, OpenOptions& open, bool with_context = true, bool with_memory = true);
  static void pre_tokenizer(CLI::App& app, std::string& name, const char* group);
  static CLI::Option* stats(CLI::App& app, std::string& stats);
  static void threads(CLI::App& app, int& n_threads, const char* group);
  void io(CLI::App& app, IoBackend& io, const char* group);

  // Kinds of values. The help shows the present value as the default.
  template <typename T>
  static CLI::Option* whole(CLI::App& app, const char* name, T& value, const WholeRange& range,
                            const char* description, const char* group) {
    const auto parse = [range, &value, name](const std::string& text) {
      value = static_cast<T>(checked_whole(name, text, range));
    };
    return number_option(app, name, parse, fmt_number(static_cast<double>(value)), description, range.zero,
                         group);
  }
  static CLI::Option* whole(CLI::App& app, const char* name, std::optional<std::uint32_t>& value,
                            const WholeRange& range, const char* description, const char* group) {
    const auto parse = [range, &value, name](const std::string& text) {
      value = static_cast<std::uint32_t>(checked_whole(name, text, range));
    };
    return number_option(app, name, parse, {}, description, range.zero, group);
  }
  template <typename T>
  static CLI::Option* decimal(CLI::App& app, const char* name, T& value, const DecimalRange& range,
                              const char* description, const char* group) {
    const auto parse = [range, &value, name](const std::string& text) {
      value = static_cast<T>(checked_decimal(name, text, range));
    };
    return number_option(app, name, parse, fmt_number(static_cast<double>(value)), description, range.zero,
                         group);
  }
  /// Several, by commas or by repeating the option.
  template <typename T>
  CLI::Option* wholes(CLI::App& app, const char* name, std::vector<T>& values, const WholeRange& range,
                      const char* description, const char* group) {
    const auto parse = [range, &values, name](const std::vector<std::string>& texts) {
      values.clear();
      for (const std::string& text : texts)
        values.push_back(static_cast<T>(checked_whole(name, text, range)));
    };
    return list_option(app, name, parse, description, group)->type_name("N[,N]");
  }
  CLI::Option* decimals(CLI::App& app, const char* name, std::vector<double>& values,
                        const DecimalRange& range, const char* description, const char* group);
  static void size(CLI::App& app, const char* name, std::uint64_t& bytes, const char* description,
                   const char* group);
  void sizes(CLI::App& app, const char* name, std::vector<std::uint64_t>& bytes, const char* description,
             const char* group);
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
  CLI::Option* choice(CLI::Option* option, const std::vector<std::string>& values);
  CLI::Option* file(CLI::Option* option);
  CLI::Option* repeatable(CLI::Option* option);

  CommandDescription describe() const { return describe(app_); }

 private:
  using TextsParser = std::function<void(const std::vector<std::string>&)>;
  static std::uint64_t checked_whole(const char* name, const std::string& text, const WholeRange& range);
  static double checked_decimal(const char* name, const std::string& text, const DecimalRange& range);
  static std::uint64_t checked_size(const char* name, const std::string& text);
  static std::string fmt_number(double value);
  static CLI::Option* number_option(CLI::App& app, const char* name,
                                    const std::function<void(const std::string&)>& parse,
                                    const std::string& default_text, const char* description,
                                    std::string_view zero, const char* group);
  CLI::Option* list_option(CLI::App& app, const char* name, const TextsParser& parse, const char* description,
                           const char* group);
  CommandDescription describe(const CLI::App& app) const;
  ArgumentDescription describe(const CLI::Option& option) const;

  CLI::App& app_;
  std::vector<const CLI::Option*> models_, files_, repeatable_;
  std::map<const CLI::Option*, std::vector<std::string>> choices_;
};

// What each command's options write to; defined in options_run.cpp and options_tools.cpp.
void add_run(OptionBuilder& builder, RunCommand& command);
void add_perplexity(OptionBuilder& builder, PerplexityCommand& command);
void add_verify(OptionBuilder& builder, VerifyCommand& command);
void add_tokenize(OptionBuilder& builder, TokenizeCommand& command);
void add_bench(OptionBuilder& builder, BenchCommand& command);
void add_inspect(OptionBuilder& builder, InspectCommand& command);
void add_profile(OptionBuilder& builder, ProfileCommand& command);
void add_plan(OptionBuilder& builder, PlanCommand& command);
void add_doctor(OptionBuilder& builder, DoctorCommand& command);
void add_synth(OptionBuilder& builder, SynthCommand& command);
void add_replay(OptionBuilder& builder, ReplayCommand& command);
void add_completion(OptionBuilder& builder, CompletionCommand& command);

}  // namespace sluice::cli
