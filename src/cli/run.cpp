#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/chat.hpp"
#include "cli/commands.hpp"
#include "cli/heat.hpp"
#include "cli/input.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "cli/opening.hpp"
#include "cli/outlook.hpp"
#include "cli/profile.hpp"
#include "cli/progress_line.hpp"
#include "cli/signals.hpp"
#include "cli/speculation.hpp"
#include "cli/stats_table.hpp"
#include "cli/swap_warning.hpp"
#include "sluice/model.hpp"
#include "sluice/routing.hpp"

namespace sluice::cli {
namespace {

/// The sampling options with the seed fixed, so that it can be reported. Bad values are the command line's
/// fault.
SamplerOptions checked_sampler(const SamplerOptions& options) {
  try {
    SamplerOptions fixed = options;
    fixed.seed = Sampler(options).seed();
    return fixed;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    throw UsageError(error.what());
  }
}

std::string prompt_text(const RunCommand& command) {
  if (command.prompt) return *command.prompt;
  std::string text = prompt_of_file(read_text(command.file.value_or("-")));
  if (text.empty())
    base::fail(ErrorCode::invalid_argument, "the prompt is empty; give one with -p, -f or standard input");
  return text;
}

std::vector<TokenId> raw_prompt(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> tokens = tokenizer.encode(text, true, true);
  // Without a prompt a model can still begin a text.
  if (tokens.empty() && tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
  return tokens;
}

void describe_model(const Model& model) {
  const ModelInfo& info = model.info();
  std::string experts;
  if (info.n_experts != 0)
    experts = fmt::format(", {} of {} experts per token", info.n_experts_used, info.n_experts);
  print_error_text(fmt::format("{}: {}, {} parameters, {}, {}, {} layers{}\n", base::printable(info.path),
                               base::printable(info.name), format_count(info.n_parameters),
                               base::format_bytes(info.file_bytes), info.quantization, info.n_layers,
                               experts));
  print_error_text(plan_table(model.plan()));
}

/// One line beside what was measured; nothing without a profile, or before anything was decoded.
std::string expected_text(const Model& model, const Stats& stats, const RunCommand& command,
                          const SpeedRates& rates) {
  const Plan& plan = model.plan();
  if (stats.n_decode_tokens == 0 || !rates.knows_machine() || !(plan.fully_resident() || rates.knows_drive()))
    return {};
  Workload workload;
  workload.n_prompt = static_cast<std::uint32_t>(std::min<std::uint64_t>(stats.n_prefill_tokens, plan.n_ctx));
  workload.n_answer = static_cast<std::uint32_t>(std::min<std::uint64_t>(stats.n_decode_tokens, plan.n_ctx));
  workload.look_ahead = command.open.look_ahead;
  workload.heat = model.heat_forecast();
  const PredictionRange range = predict_range(model.work(), plan, rates, workload);
  workload.hit_rate = stats.hit_rate();
  const double at_hit_rate = predict(model.work(), plan, rates, workload).decode.tokens_per_second;
  std::string text = fmt::format("expected of decoding: {:.1f} tok/s", at_hit_rate);
  if (!plan.fully_resident()) {
    text += " at this hit rate";
    if (range.heat) {
      text += fmt::format(", {:.1f} by the {:.0f} tokens before this run ({:.0f} % found)",
                          range.heat->decode.tokens_per_second, workload.heat->n_tokens,
                          100 * range.heat->decode.hit_rate);
    }
    text += fmt::format(", {:.1f} to {:.1f} before it was known", range.low.decode.tokens_per_second,
                        range.high.decode.tokens_per_second);
  }
  return text + fmt::format("; measured {:.1f}\n", stats.decode_rate());
}

void print_stats(const Model& model, const RunCommand& command, const SpeedRates& rates) {
  const bool full = command.stats == "full";
  const Stats stats = profiled_stats(model, command.open.io);
  print_error_text(stats_table(model.plan(), stats));
  print_error_text(expected_text(model, stats, command, rates));
  if (full) print_error_text(layer_table(stats));
}

void note_plain_form(const ChatForm& form) {
  if (!form.is_plain) return;
  print_error_text(
      "sluice: note: the file names no form of chat that this version knows, so turns are written as User: "
      "and "
      "Assistant: lines and answers may be poor; to use the model's own form, give the whole prompt with its "
      "control tokens by -p or -f, without --chat\n");
}

/// Throws what the file's header is enough to say against the request. In a chat each message is checked when
/// it comes; here the system message alone. Returns the form of a chat, or nullptr.
const ChatForm* check_request(const RunCommand& command, bool interactive, const std::string& text,
                              const ModelInfo& info, const Tokenizer& tokenizer, const Plan& plan) {
  if (!interactive && !command.chat && !command.system) {
    check_prompt(raw_prompt(tokenizer, text).size(), plan.n_ctx);
    return nullptr;
  }
  Transcript transcript(tokenizer, info.chat_template, command.system);
  transcript.add_message(text);
  check_prompt(transcript.tokens().size(), plan.n_ctx);
  return &transcript.form();
}

void note_full_context(const Model& model, const Generation& generation) {
  if (generation.reason != StopReason::context_full) return;
  print_error_text(fmt::format("sluice: note: the context of {} tokens is full; --ctx asks for more\n",
                               model.plan().n_ctx));
}

Generation answer_prompt(const RunCommand& command, Model& model, const GenerateOptions& options,
                         const std::string& text, const std::function<bool(std::string_view)>& on_text) {
  if (command.chat || command.system) {
    Conversation conversation(model, command.system, options.sampler);
    return conversation.answer(text, options, on_text);
  }
  Sequence sequence = model.new_sequence();
  return generate(model, sequence, raw_prompt(model.tokenizer(), text), options, on_text);
}

/// A fault in the middle of the answer, such as a read that failed, is thrown at the end: what there is of
/// the answer is printed before, and what was counted.
int run_prompt(const RunCommand& command, Model& model, const GenerateOptions& options,
               const std::string& text, const SpeedRates& rates, Output& output) {
  PromptProgress progress(model);
  const auto on_text = [&](std::string_view piece) {
    progress.clear();
    return command.json || output.write_answer(piece);
  };
  Generation generation;
  std::optional<Error> fault;
  try {
    generation = answer_prompt(command, model, options, text, on_text);
  } catch (const GenerationError& error) {
    fault = error;
    generation = error.partial();
  }
  progress.clear();
  if (command.json) {
    output.write(run_json(model.info(), generation, fault ? fault->what() : "", options.sampler.seed,
                          model.plan(), profiled_stats(model, command.open.io)));
  }
  output.end_line();
  note_full_context(model, generation);
  if (!command.stats.empty()) print_stats(model, command, rates);
  if (fault) {
    model.save_heat();
    throw *fault;
  }
  return exit_status(output);
}

/// One message and its answer. A fault ends the answer, not the chat; false when the output is gone or a
/// signal other than Ctrl-C came.
bool chat_turn(const RunCommand& command, Model& model, Conversation& conversation,
               const std::string& message, const GenerateOptions& options, const SpeedRates& rates,
               Output& output) {
  PromptProgress progress(model);
  try {
    const Generation generation = conversation.answer(message, options, [&](std::string_view piece) {
      progress.clear();
      return output.write_answer(piece);
    });
    progress.clear();
    output.end_line();
    if (generation.reason == StopReason::context_full) {
      print_error_text("sluice: note: the context is full; /reset begins anew, --ctx asks for more\n");
    }
  } catch (const Error& error) {
    progress.clear();
    output.end_line();
    const char* cure = error.code() == ErrorCode::context_full ? "; /reset begins anew" : "";
    print_error_text(fmt::format("sluice: error: {}{}\n", base::printable(error.what()), cure));
  }
  if (!command.stats.empty()) print_stats(model, command, rates);
  if (stop_signal() != 0 && !stopped_by_keyboard()) return false;
  clear_stop_signal();
  output.resume();
  return output.state() == Output::State::good;
}

constexpr std::string_view k_chat_help =
    "/exit   end the chat, as Ctrl-D does\n"
    "/reset  begin a new conversation with the same system message\n"
    "/stats  show memory, drive and speed figures\n"
    "/help   show this\n"
    "A message may have several lines: paste them, press Alt-Enter between them, or put \"\"\" before the "
    "first and "
    "behind the last.\n";

/// "/word" alone; a path or other text that begins with a slash is a message.
bool is_command(const std::string& message) {
  return message.size() > 1 && message.front() == '/' &&
         std::all_of(message.begin() + 1, message.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

int run_chat(const RunCommand& command, Model& model, const GenerateOptions& options, const SpeedRates& rates,
             Output& output) {
  Conversation conversation(model, command.system, command.generate.sampler);
  print_error_text(fmt::format("{}: /help lists commands; Ctrl-C stops an answer, Ctrl-D ends\n",
                               base::printable(model.info().name)));
  MessageReader messages;
  for (;;) {
    messages.begin();
    const auto waits = [&messages] { return !messages.is_ready() && stop_signal() == 0; };
    model.preload_while(waits);
    // An idle program must not keep what others need.
    for (constexpr int k_look_ms = 10; waits(); messages.wait_ready(k_look_ms)) model.relieve();
    const std::optional<std::string> message = messages.next();
    if (!message || *message == "/exit") {
      if (!message) print_error_text("\n");
      break;
    }
    if (message->find_first_not_of(" \t\n") == std::string::npos) continue;
    if (*message == "/reset") {
      conversation.reset();
    } else if (*message == "/stats") {
      print_stats(model, command, rates);
    } else if (*message == "/help") {
      print_error_text(k_chat_help);
    } else if (is_command(*message)) {
      print_error_text(fmt::format("sluice: there is no command {}; /help lists them\n", *message));
    } else if (!chat_turn(command, model, conversation, *message, options, rates, output)) {
      break;
    }
  }
  // Ctrl-C at the prompt is a way to leave, not a failure.
  if (stopped_by_keyboard()) clear_stop_signal();
  return exit_status(output);
}

}  // namespace

int run(const RunCommand& command, Output& output) {
  const bool interactive = !command.prompt && !command.file && !command.raw && input_is_terminal();
  if (interactive && command.json)
    throw UsageError("--json needs a prompt: give one with -p, -f or standard input");
  check_speculation(command.speculation, !command.trace.empty());
  GenerateOptions options = command.generate;
  options.sampler = checked_sampler(options.sampler);
  const std::filesystem::path path = find_model(command.model);
  const std::string text = interactive ? std::string() : prompt_text(command);

  OpenOptions open = command.open;
  open.heat = heat_place(command.heat);
  std::optional<TraceWriter> trace;
  if (!command.trace.empty()) open.on_routing = trace.emplace(command.trace).observer();
  std::optional<Model> draft = open_draft_for(command.speculation, open);
  if (draft) open.draft = &*draft;
  // Before the model is opened: it reads the header once more. Chats may ask for statistics at any time.
  const SpeedRates rates = interactive || !command.stats.empty() ? kept_rates(path, open) : SpeedRates();
  bool is_noted = false;
  open.before_loading = [&](const ModelInfo& info, const Tokenizer& tokenizer, const Plan& plan) {
    const ChatForm* form = check_request(command, interactive, text, info, tokenizer, plan);
    // This may be called again.
    if (form != nullptr && !std::exchange(is_noted, true)) note_plain_form(*form);
  };
  Model model = open_with_progress(path, open);
  std::optional<Speculator> speculator;
  // A trace is of plain decoding.
  if (!trace) speculator = make_speculator(command.speculation, model, std::move(draft));
  if (speculator) options.speculator = &*speculator;
  if (trace) trace->begin(model.info(), model.plan().prefill_chunk);
  // Only now: before, there is nothing to finish.
  catch_stop_signals();
  model.set_cancel_flag(stop_flag());
  if (command.verbose) describe_model(model);
  const int status = interactive ? run_chat(command, model, options, rates, output)
                                 : run_prompt(command, model, options, text, rates, output);
  if (const std::string note = swap_warning(model.stats()); !note.empty()) base::warn("{}", note);
  model.save_heat();
  return status;
}

}  // namespace sluice::cli
