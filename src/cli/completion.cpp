#include "cli/completion.hpp"

#include <fmt/core.h>

#include <map>
#include <string_view>

#include "cli/models.hpp"

namespace sluice::cli {
namespace {

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += fmt::format("{}{}", text.empty() ? "" : separator, word);
  return text;
}

std::string builtin_names() {
  std::vector<std::string> names;
  for (const BuiltinModel& model : k_builtin_models) names.emplace_back(model.name);
  return join(names, " ");
}

std::vector<std::string> command_names(const CommandDescription& program) {
  std::vector<std::string> names;
  for (const CommandDescription& command : program.commands) names.push_back(command.name);
  return names;
}

/// Puts a backslash before each of `special`.
std::string escape(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// --- bash
// -----------------------------------------------------------------------------------------------------

/// "run:-p|run:--prompt"
std::string bash_pattern(const std::string& command, const ArgumentDescription& option) {
  std::vector<std::string> patterns;
  for (const std::string& name : option.names) patterns.push_back(command + ":" + name);
  return join(patterns, "|");
}

std::string bash_option_words(const CommandDescription& command) {
  std::vector<std::string> words;
  for (const ArgumentDescription& argument : command.arguments) {
    words.insert(words.end(), argument.names.begin(), argument.names.end());
  }
  return join(words, " ");
}

/// The command that offers values of this argument; nothing where only the user knows the value.
std::string bash_offer(const ArgumentDescription& argument) {
  std::string source;
  if (argument.is_model) {
    source = fmt::format("-f -W \"{}\"", builtin_names());
  } else if (argument.is_file) {
    source = "-f";
  } else if (!argument.choices.empty()) {
    source = fmt::format("-W \"{}\"", join(argument.choices, " "));
  } else {
    return {};
  }
  return fmt::format("COMPREPLY=($(compgen {} -- \"$cur\")); ", source);
}

std::string bash_script(const CommandDescription& program) {
  std::map<std::string, std::vector<std::string>> patterns_by_offer;
  std::string options, positionals;
  for (const CommandDescription& command : program.commands) {
    options += fmt::format("    {}) options=\"{}\" ;;\n", command.name, bash_option_words(command));
    for (const ArgumentDescription& argument : command.arguments) {
      if (argument.names.empty()) {
        positionals += fmt::format("    {}) {};;\n", command.name, bash_offer(argument));
      } else if (argument.takes_value) {
        patterns_by_offer[bash_offer(argument)].push_back(bash_pattern(command.name, argument));
      }
    }
  }
  std::string values;
  for (const auto& [offer, patterns] : patterns_by_offer) {
    values += fmt::format("    {}) {}return ;;\n", join(patterns, "|"), offer);
  }
  const std::string commands = join(command_names(program), " ");
  const std::string case_of_commands = join(command_names(program), "|");
  return "# bash completion for sluice; use: source <(sluice completion bash)\n"
         "_sluice() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" command=\"\" "
         "options i\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case \"${COMP_WORDS[i]}\" in " +
         case_of_commands +
         ") command=\"${COMP_WORDS[i]}\"; break ;; esac\n"
         "  done\n"
         "  case \"$command:$prev\" in\n" +
         values +
         "  esac\n"
         "  case \"$command\" in\n" +
         options + "    *) options=\"" + bash_option_words(program) +
         "\" ;;\n"
         "  esac\n"
         "  if [[ \"$cur\" == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
         "    return\n"
         "  fi\n"
         "  case \"$command\" in\n"
         "    \"\") COMPREPLY=($(compgen -W \"" +
         commands + "\" -- \"$cur\")) ;;\n" + positionals +
         "  esac\n"
         "}\n"
         "complete -o filenames -F _sluice sluice\n";
}

// --- zsh
// ------------------------------------------------------------------------------------------------------

std::string zsh_quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string zsh_values(const ArgumentDescription& argument) {
  if (argument.is_model) return "_sluice_models";
  if (argument.is_file) return "_files";
  return argument.choices.empty() ? "" : fmt::format("({})", join(argument.choices, " "));
}

/// One specification of _arguments.
std::string zsh_spec(const ArgumentDescription& argument) {
  const std::string description = escape(argument.description, "[]:\\");
  if (argument.names.empty()) return zsh_quote(fmt::format("1:{}:{}", description, zsh_values(argument)));
  const std::string tail =
      fmt::format("[{}]{}", description, argument.takes_value ? ":value:" + zsh_values(argument) : "");
  std::string spec;
  for (const std::string& name : argument.names) {
    const std::string head =
        argument.repeatable ? "*" + name : fmt::format("({}){}", join(argument.names, " "), name);
    spec += fmt::format("{}{}", spec.empty() ? "" : " ", zsh_quote(head + tail));
  }
  return spec;
}

std::string zsh_specs(const CommandDescription& command, const char* indent) {
  std::string specs;
  for (const ArgumentDescription& argument : command.arguments)
    specs += fmt::format(" \\\n{}{}", indent, zsh_spec(argument));
  return specs;
}

std::string zsh_script(const CommandDescription& program) {
  std::string commands, cases;
  for (const CommandDescription& command : program.commands) {
    commands += fmt::format("    {}\n", zsh_quote(command.name + ":" + escape(command.description, ":\\")));
    cases += fmt::format("        {}) _arguments -s{} ;;\n", command.name, zsh_specs(command, "          "));
  }
  return "#compdef sluice\n"
         "_sluice_models() {\n"
         "  _alternative 'builtin:built-in model:(" +
         builtin_names() +
         ")' 'file:GGUF file:_files'\n"
         "}\n"
         "_sluice() {\n"
         "  local curcontext=\"$curcontext\" state line\n"
         "  typeset -A opt_args\n"
         "  local -a commands=(\n" +
         commands +
         "  )\n"
         "  _arguments -C" +
         zsh_specs(program, "    ") +
         " \\\n"
         "    '1:command:->command' '*::argument:->argument'\n"
         "  case \"$state\" in\n"
         "    command) _describe command commands ;;\n"
         "    argument)\n"
         "      case \"$line[1]\" in\n" +
         cases +
         "      esac ;;\n"
         "  esac\n"
         "}\n"
         "if [ \"$funcstack[1]\" = _sluice ]; then _sluice \"$@\"; else compdef _sluice sluice; fi\n";
}

// --- fish
// -----------------------------------------------------------------------------------------------------

std::string fish_quote(const std::string& text) {
  return fmt::format("'{}'", escape(text, "'\\"));
}

std::string fish_argument(const ArgumentDescription& argument) {
  std::string line;
  for (const std::string& name : argument.names) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  std::vector<std::string> words = argument.choices;
  if (argument.is_model) words.push_back(builtin_names());
  const bool files = argument.is_file || argument.is_model;
  if (argument.takes_value && !argument.names.empty()) line += files ? " -r -F" : " -x";
  if (argument.names.empty() && files) line += " -F";
  if (!words.empty()) line += " -a " + fish_quote(join(words, " "));
  return line + " -d " + fish_quote(argument.description);
}

std::string fish_script(const CommandDescription& program) {
  std::string script =
      "# fish completion for sluice; use: sluice completion fish > ~/.config/fish/completions/sluice.fish\n"
      "complete -c sluice -f\n";
  for (const ArgumentDescription& argument : program.arguments) {
    script += fmt::format("complete -c sluice -n __fish_use_subcommand{}\n", fish_argument(argument));
  }
  for (const CommandDescription& command : program.commands) {
    script += fmt::format("complete -c sluice -n __fish_use_subcommand -a {} -d {}\n", command.name,
                          fish_quote(command.description));
    for (const ArgumentDescription& argument : command.arguments) {
      script += fmt::format("complete -c sluice -n '__fish_seen_subcommand_from {}'{}\n", command.name,
                            fish_argument(argument));
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const std::string& shell, const CommandDescription& program) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  throw UsageError(fmt::format("no completion script for the shell '{}'", shell));
}

}  // namespace sluice::cli
