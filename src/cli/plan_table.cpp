#include <fmt/core.h>

#include <algorithm>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/outlook.hpp"
#include "cli/stats_table.hpp"

namespace sluice::cli {
namespace {

using base::format_bytes;
using Cells = std::vector<std::string>;

const std::string k_missing(1, '-');
const std::string k_unit = " tok/s";

/// Three digits at least, none behind the point that say nothing.
std::string rate(double per_second) {
  return fmt::format("{:.{}f}", per_second, per_second < 10 ? 2 : per_second < 100 ? 1 : 0);
}

std::string milliseconds(double ns) {
  return fmt::format("{:.{}f} ms", ns / 1e6, ns < 10e6 ? 2 : 0);
}

std::string duration(double seconds) {
  constexpr double k_minute = 60, k_hour = 3600;
  if (seconds < 10 * k_minute) return fmt::format("{:.{}f} s", seconds, seconds < 100 ? 1 : 0);
  if (seconds < 10 * k_hour) return fmt::format("{:.0f} min", seconds / k_minute);
  return fmt::format("{:.1f} h", seconds / k_hour);
}

/// "8.10 (6.60 to 11.0)"; the range only where it is one.
template <typename Value, typename Text>
std::string ranged(const PredictionRange& range, Value&& value, Text&& text) {
  const std::string expected = text(value(range.expected())), low = text(value(range.low)),
                    high = text(value(range.high));
  if (low == expected && high == expected) return expected;
  return fmt::format("{} ({} to {})", expected, low, high);
}

std::string terms(const PassPrediction& pass, bool streams) {
  const std::string drive = streams ? fmt::format("drive {}, ", milliseconds(pass.drive_ns)) : std::string();
  return fmt::format("limit: {}; per token {}memory {}, arithmetic {}", pass.limit, drive,
                     milliseconds(pass.memory_ns), milliseconds(pass.compute_ns));
}

/// Whose routing the figure that is shown assumes.
std::string routing_text(const PredictionRange& range) {
  if (!range.heat) return "recorded of real models";
  return fmt::format("in the last {:.0f} tokens on this machine", range.heat->workload.heat->n_tokens);
}

std::string prediction_text(const PredictionRange& range, const Plan& plan) {
  const bool streams = !plan.fully_resident();
  const Workload& work = range.expected().workload;
  Table table;
  table.heading("prediction");
  if (work.n_prompt != 0) {
    table.row("prefill",
              ranged(
                  range, [](const Prediction& p) { return p.prefill.tokens_per_second; }, rate) +
                  k_unit,
              terms(range.expected().prefill, streams));
  }
  if (work.n_answer != 0) {
    table.row("decode",
              ranged(
                  range, [](const Prediction& p) { return p.decode.tokens_per_second; }, rate) +
                  k_unit,
              terms(range.expected().decode, streams));
  }
  table.row("answer",
            ranged(
                range, [](const Prediction& p) { return p.answer_seconds; }, duration),
            fmt::format("a prompt of {} tokens and {} tokens of answer", work.n_prompt, work.n_answer));
  if (plan.n_cached_units < plan.n_units) {
    const auto percent = [](double share) { return fmt::format("{:.0f} %", 100 * share); };
    table.row("experts found",
              ranged(
                  range, [](const Prediction& p) { return p.decode.hit_rate; }, percent),
              fmt::format("in memory when decoding: as {} (all used alike, to the better of two real models)",
                          routing_text(range)));
  }
  return table.text();
}

std::string source_text(const PlanOutlook& outlook) {
  const PlanReport& report = outlook.report;
  std::string text = fmt::format("{}: {}, {}, {} parameters, {}\n", base::printable(report.source),
                                 base::printable(report.name), base::printable(report.architecture),
                                 format_count(report.n_parameters), format_bytes(report.file_bytes));
  if (report.missing_bytes != 0) {
    text += fmt::format("the file ends early: {} are missing, which matters not to the plan\n",
                        format_bytes(report.missing_bytes));
  }
  return text;
}

std::string notes_text(const PlanOutlook& outlook) {
  std::string text;
  for (const std::string& note : outlook.known.notes)
    text += fmt::format("note: {}\n", base::printable(note));
  return text;
}

std::string comparison_text(const PlanOutlook& outlook) {
  std::vector<Cells> lines{
      {"budget", "on the drive", "experts cached", "context", "prefill tok/s", "decode tok/s", "answer"}};
  std::string refusals;
  for (std::size_t i = 0; i < outlook.report.choices.size(); ++i) {
    const PlanChoice& choice = outlook.report.choices[i];
    if (!choice.plan) {
      lines.push_back({format_bytes(choice.memory_bytes), "refused", k_missing, k_missing, k_missing,
                       k_missing, k_missing});
      refusals +=
          choice.needed_bytes == 0
              ? fmt::format("refused: {}\n", base::printable(choice.refusal))
              : fmt::format("refused: {} is too small; the smallest budget that works is {} (--memory {}M)\n",
                            format_bytes(choice.memory_bytes), format_bytes(choice.needed_bytes),
                            (choice.needed_bytes + base::k_mib - 1) / base::k_mib);
      continue;
    }
    const Plan& plan = *choice.plan;
    Cells cells{format_bytes(plan.budget_bytes),
                plan.fully_resident() ? "nothing" : format_bytes(plan.streamed_bytes),
                plan.n_units == 0 ? k_missing
                                  : fmt::format("{:.0f} %", 100.0 * static_cast<double>(plan.n_cached_units) /
                                                                static_cast<double>(plan.n_units)),
                fmt::format("{}", plan.n_ctx)};
    if (const auto& range = outlook.predictions[i]) {
      cells.push_back(ranged(
          *range, [](const Prediction& p) { return p.prefill.tokens_per_second; }, rate));
      cells.push_back(ranged(
          *range, [](const Prediction& p) { return p.decode.tokens_per_second; }, rate));
      cells.push_back(ranged(
          *range, [](const Prediction& p) { return p.answer_seconds; }, duration));
    } else {
      cells.insert(cells.end(), 3, k_missing);
    }
    lines.push_back(std::move(cells));
  }
  std::string text = columns(lines);
  const auto predicted = std::find_if(outlook.predictions.begin(), outlook.predictions.end(),
                                      [](const auto& range) { return range.has_value(); });
  if (predicted != outlook.predictions.end()) {
    const Workload& work = (*predicted)->typical.workload;
    text += fmt::format("answer: a prompt of {} tokens and {} tokens of answer, cut to the context\n",
                        work.n_prompt, work.n_answer);
  }
  const auto streams = std::find_if(outlook.predictions.begin(), outlook.predictions.end(),
                                    [](const auto& range) { return range && range->heat; });
  if (streams != outlook.predictions.end())
    text += fmt::format("experts are taken to be used as {}\n", routing_text(**streams));
  return text + refusals;
}

}  // namespace

std::string choice_text(const PlanOutlook& outlook, std::size_t index) {
  const PlanChoice& choice = outlook.report.choices[index];
  std::string text = "plan\n" + plan_table(*choice.plan);
  if (const auto& range = outlook.predictions[index]) text += prediction_text(*range, *choice.plan);
  return text + notes_text(outlook);
}

std::string plan_text(const PlanOutlook& outlook) {
  const std::string source = source_text(outlook);
  if (outlook.report.choices.size() == 1) return source + choice_text(outlook, 0);
  return source + comparison_text(outlook) + notes_text(outlook);
}

}  // namespace sluice::cli
