#include "cli/replay.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/stats_table.hpp"

namespace sluice::cli {
namespace {

constexpr std::size_t k_max_sizes = 64;

std::vector<ReplayReport::Size> list_sizes(const ReplayCommand& command, const RoutingTrace& trace) {
  std::vector<ReplayReport::Size> sizes;
  for (const std::uint32_t slots : command.slots)
    sizes.push_back({fmt::format("{} slots", slots), std::uint64_t{slots} * trace.n_layers});
  std::vector<double> percents = command.percents;
  if (sizes.empty() && percents.empty()) percents = {1, 3, 6.25, 9.4, 12.5, 18.75, 25, 37.5, 50};
  for (const double percent : percents)
    sizes.push_back({fmt::format("{} %", percent), slots_for_share(trace, percent / 100)});
  if (sizes.size() > k_max_sizes)
    throw UsageError(fmt::format("{} sizes were asked for; expected at most {}", sizes.size(), k_max_sizes));
  return sizes;
}

std::string facts(const ReplayReport& report) {
  const RoutingTrace& trace = report.trace;
  Table table;
  table.row("trace", "", fmt::format("{} ({})", base::printable(trace.path), trace.format));
  if (!trace.model.empty())
    table.row("model", "",
              fmt::format("{} {}", base::printable(trace.model), base::printable(trace.architecture)));
  table.row(
      "routing", "",
      fmt::format("{} layers, {} of {} experts per token", trace.n_layers, trace.n_used, trace.n_experts));
  table.row("counted", "",
            fmt::format("{} decoded tokens; {} tokens in all, {} of them a prompt, {} to warm up",
                        report.n_counted(), trace.n_tokens(), report.n_prompt_tokens(), report.n_warm_up));
  if (!trace.expert_bytes.empty()) {
    const auto [least, most] = std::minmax_element(trace.expert_bytes.begin(), trace.expert_bytes.end());
    table.row("one expert", "",
              *least == *most
                  ? base::format_bytes(*most)
                  : fmt::format("{} to {}", base::format_bytes(*least), base::format_bytes(*most)));
  }
  return table.text();
}

std::string hit_table(const ReplayReport& report) {
  constexpr int k_name_width = 14;
  std::string text = fmt::format("{:<{}}", "hit %", k_name_width);
  for (const ReplayReport::Size& size : report.sizes) text += fmt::format(" {:>8}", size.label);
  text += "\n";
  for (const ReplayReport::Row& row : report.rows) {
    text += fmt::format("{:<{}}", replay_policy_name(row.policy), k_name_width);
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const std::size_t width = std::max<std::size_t>(8, report.sizes[i].label.size());
      text += fmt::format(" {:>{}.1f}", 100 * row.cells[i].hit_rate(), width);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

double ReplayReport::share(std::size_t size) const {
  const double n_units = static_cast<double>(trace.n_layers) * trace.n_experts;
  return std::min(1.0, static_cast<double>(sizes[size].n_slots) / n_units);
}

std::uint32_t ReplayReport::n_prompt_tokens() const {
  return static_cast<std::uint32_t>(std::count(trace.is_prompt.begin(), trace.is_prompt.end(), true));
}

std::uint32_t ReplayReport::n_counted() const {
  if (n_warm_up >= trace.n_tokens()) return 0;
  return static_cast<std::uint32_t>(
      std::count(trace.is_prompt.begin() + n_warm_up, trace.is_prompt.end(), false));
}

int replay(const ReplayCommand& command, Output& output) {
  ReplayReport report;
  report.trace = read_trace(command.trace, command.n_experts);
  report.n_warm_up = command.warm_up.value_or(default_warm_up(report.trace));
  report.sizes = list_sizes(command, report.trace);
  std::vector<ReplayPolicy> policies = command.policies;
  if (policies.empty()) policies.assign(k_replay_policies.begin(), k_replay_policies.end());
  for (const ReplayPolicy policy : policies) {
    report.rows.push_back({policy, {}});
    for (const ReplayReport::Size& size : report.sizes)
      report.rows.back().cells.push_back(replay_trace(report.trace, policy, size.n_slots, report.n_warm_up));
  }
  if (command.json) {
    output.write(replay_json(report));
  } else {
    output.print(facts(report) + "\n" + hit_table(report));
  }
  return exit_status(output);
}

}  // namespace sluice::cli
