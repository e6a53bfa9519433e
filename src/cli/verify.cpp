#include "cli/verify.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "cli/opening.hpp"
#include "cli/profile.hpp"
#include "cli/stats_table.hpp"
#include "sluice/model.hpp"

namespace sluice::cli {
namespace {

std::string token_text(const Tokenizer& tokenizer, TokenId token) {
  // A model without a vocabulary computes all the same.
  const std::string id = std::to_string(token);
  if (tokenizer.vocab_size() == 0) return id;
  return fmt::format("{} '{}'", id, base::printable(tokenizer.token_bytes(token)));
}

std::string place_text(const Tokenizer& tokenizer, const VerifyPlace& place) {
  std::string text = fmt::format("window {}, token {}: {} ({:.2f} %, reference {:.2f} %)", place.chunk + 1,
                                 place.position, token_text(tokenizer, place.reference_token),
                                 100 * place.probability, 100 * place.reference_probability);
  if (place.token != place.reference_token)
    text += fmt::format(", the model prefers {}", token_text(tokenizer, place.token));
  return text;
}

std::string verdict_text(const VerifyReport& report) {
  if (report.is_within()) {
    return fmt::format("within the limits (mean divergence {}, same likeliest token {} %)", report.max_kl,
                       report.min_same_top_percent);
  }
  std::string text = "not within the limits:";
  if (!report.kl_is_within())
    text += fmt::format(" mean divergence {:.6f} above {}", report.result.mean_kl, report.max_kl);
  if (!report.kl_is_within() && !report.same_top_is_within()) text += ",";
  if (!report.same_top_is_within()) {
    text += fmt::format(" same likeliest token {:.2f} % below {} %", 100 * report.result.same_top(),
                        report.min_same_top_percent);
  }
  return text;
}

std::string report_text(const Tokenizer& tokenizer, const VerifyReport& report, std::uint32_t n_ctx) {
  const VerifyResult& result = report.result;
  std::string text;
  const auto line = [&text](const char* label, const std::string& value) {
    text += fmt::format("{:<15} {}\n", label, value);
  };
  line("compared", fmt::format("{} tokens in {} windows of {}", result.n_scored, result.n_chunks, n_ctx));
  line("divergence", fmt::format("mean {:.6f} +/- {:.6f}, median {:.6f}, largest {:.6f}", result.mean_kl,
                                 result.mean_kl_error, result.median_kl, result.max_kl));
  line("  largest at", place_text(tokenizer, result.worst));
  line("same likeliest", fmt::format("{:.2f} %", 100 * result.same_top()));
  line("  parts first", result.first_parting ? place_text(tokenizer, *result.first_parting) : "nowhere");
  line("perplexity", fmt::format("{:.4f}, reference {:.4f} (of {} tokens)", result.perplexity,
                                 result.reference_perplexity, result.n_rated));
  line("verdict", verdict_text(report));
  return text;
}

}  // namespace

int verify(const VerifyCommand& command, Output& output) {
  const std::filesystem::path path = find_model(command.model);
  Reference reference = Reference::open(command.reference);
  OpenOptions open = command.open;
  open.n_ctx = reference.n_ctx();
  open.program_bytes = reference.memory_bytes();
  open.before_loading = [&](const ModelInfo& info, const Tokenizer&, const Plan& plan) {
    check_verify(reference, info, plan);
  };
  Model model = open_with_progress(path, open);
  const std::uint32_t max_chunks = command.options.max_chunks;
  const std::uint32_t n_chunks =
      max_chunks == 0 ? reference.n_chunks() : std::min(reference.n_chunks(), max_chunks);
  VerifyReport report{{}, command.max_kl, command.min_same_top_percent};
  report.result = sluice::verify(model, reference, command.options, [n_chunks](const VerifyResult& so_far) {
    print_error_text(fmt::format("window {} of {}: mean divergence {:.6f}, same likeliest {:.2f} %\n",
                                 so_far.n_chunks, n_chunks, so_far.mean_kl, 100 * so_far.same_top()));
  });
  const Stats stats = profiled_stats(model, command.open.io);
  if (command.json) {
    output.write(verify_json(model.info(), report, model.plan(), stats));
  } else {
    output.print(report_text(model.tokenizer(), report, reference.n_ctx()));
  }
  if (!command.stats.empty()) print_error_text(stats_table(model.plan(), stats));
  if (command.stats == "full") print_error_text(layer_table(stats));
  const int status = exit_status(output);
  return status == k_exit_ok && !report.is_within() ? k_exit_error : status;
}

}  // namespace sluice::cli
