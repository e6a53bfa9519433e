#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "cli/commands.hpp"
#include "cli/input.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "cli/opening.hpp"
#include "cli/profile.hpp"
#include "cli/stats_table.hpp"
#include "sluice/model.hpp"

namespace sluice::cli {

int perplexity(const PerplexityCommand& command, Output& output) {
  const std::filesystem::path path = find_model(command.model);
  std::string text = read_text(command.file);
  OpenOptions open = command.open;
  // Tokens of three bytes or more, as texts have, in a list that grows by doubling.
  open.program_bytes = text.size() * sizeof(TokenId);
  std::vector<TokenId> tokens;
  open.before_loading = [&](const ModelInfo&, const Tokenizer& tokenizer, const Plan& plan) {
    if (tokens.empty()) tokens = tokenizer.encode(text, true, false);
    check_perplexity(tokens.size(), command.options, plan);
    // The budget counts every byte, and the text is not needed any more.
    std::string().swap(text);
  };
  Model model = open_with_progress(path, open);
  const std::size_t n_windows = tokens.size() / std::max(command.options.n_ctx, 1u);
  const std::size_t n_chunks = command.options.max_chunks == 0
                                   ? n_windows
                                   : std::min<std::size_t>(n_windows, command.options.max_chunks);
  const PerplexityResult result =
      sluice::perplexity(model, tokens, command.options, [n_chunks](const PerplexityResult& so_far) {
        print_error_text(fmt::format("window {} of {}: perplexity {:.4f}\n", so_far.n_chunks, n_chunks,
                                     so_far.perplexity));
      });

  const Stats stats = profiled_stats(model, command.open.io);
  if (command.json) {
    output.write(perplexity_json(model.info(), result, command.options.n_ctx, model.plan(), stats));
  } else {
    output.write(fmt::format("perplexity {:.4f} +/- {:.4f} ({} tokens scored in {} windows of {})\n",
                             result.perplexity, result.std_error, result.n_scored, result.n_chunks,
                             command.options.n_ctx));
  }
  if (!command.stats.empty()) print_error_text(stats_table(model.plan(), stats));
  if (command.stats == "full") print_error_text(layer_table(stats));
  return exit_status(output);
}

}  // namespace sluice::cli
