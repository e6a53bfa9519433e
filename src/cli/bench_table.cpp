#include <fmt/core.h>

#include <algorithm>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/bench.hpp"
#include "cli/output.hpp"
#include "cli/stats_table.hpp"
#include "sluice/version.hpp"

namespace sluice::cli {
namespace {

using base::format_bytes;
using Cells = std::vector<std::string>;

std::string giga(double bytes_per_second) {
  return fmt::format("{:.2f} GB/s", bytes_per_second / 1e9);
}
std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}
std::string bytes(double value) {
  return format_bytes(static_cast<std::uint64_t>(value));
}

std::string what_stays(const Plan& plan) {
  std::string text;
  if (plan.n_units != 0) text = fmt::format("{} of {} experts cached", plan.n_cached_units, plan.n_units);
  if (plan.n_pinned_blocks != plan.n_dense_blocks) {
    text += fmt::format("{}{} of {} dense blocks pinned", text.empty() ? "" : ", ", plan.n_pinned_blocks,
                        plan.n_dense_blocks);
  }
  return text.empty() ? "token embeddings not pinned" : text;
}

std::string facts(const BenchReport& report) {
  const MachineRates& rates = report.rates;
  const Plan& plan = report.plan;
  Table table;
  table.row("model", "",
            fmt::format("{}: {}, {}, {} parameters, {}", base::printable(report.info.name),
                        base::printable(report.info.architecture), report.info.quantization,
                        format_count(report.info.n_parameters), format_bytes(report.info.file_bytes)));
  table.row("program", "", fmt::format("sluice {} ({})", version(), build_facts()));
  table.row("machine", "",
            fmt::format("{}, {} cores usable, {}, {}", base::printable(report.machine.cpu_model),
                        report.machine.n_usable_cpus, format_bytes(report.machine.memory_bytes),
                        base::printable(report.machine.kernel)));
  table.row("run", "",
            fmt::format("{} threads, {}, {}", report.stats.n_threads, report.stats.isa, report.date));
  table.row("memory", "",
            plan.fully_resident()
                ? fmt::format("{} planned, all weights resident", format_bytes(plan.planned_bytes))
                : fmt::format("budget {}, {}, {} on the drive", format_bytes(plan.budget_bytes),
                              what_stays(plan), format_bytes(plan.streamed_bytes)));
  table.row("memory read", "",
            fmt::format("{} measured with {} threads over {}{}", giga(rates.read_bytes_per_second),
                        rates.n_threads, format_bytes(rates.buffer_bytes),
                        rates.beyond_cache ? ""
                                           : "; the budget leaves no larger buffer, so caches helped and no "
                                             "bound is given"));
  return table.text();
}

std::string speed(const BenchReport& report) {
  std::vector<Cells> lines{
      {"test", "tok/s", "min", "max", "spread", "ms/token", "weights/token", "memory", "of bound"}};
  for (const BenchTest& test : report.tests) {
    const auto fraction = report.fraction_of_bound(test);
    lines.push_back({test.name, fmt::format("{:.2f}", test.median()), fmt::format("{:.2f}", test.min()),
                     fmt::format("{:.2f}", test.max()), percent(test.spread()),
                     fmt::format("{:.3f}", test.ms_per_token()), bytes(test.weight_bytes_per_token()),
                     giga(test.memory_rate()), fraction ? percent(*fraction) : "-"});
  }
  return columns(lines);
}

std::string drive(const BenchReport& report) {
  std::vector<Cells> lines{{"test", "read/token", "drive", "busy", "hit rate", "ahead", "used", "stall"}};
  for (const BenchTest& test : report.tests) {
    lines.push_back(
        {test.name, bytes(test.drive_bytes_per_token()), test.io_busy_ns == 0 ? "-" : giga(test.drive_rate()),
         percent(test.busy_share()), percent(test.hit_rate()), fmt::format("{}", test.n_ahead),
         test.n_ahead == 0
             ? "-"
             : percent(static_cast<double>(test.n_ahead_used) / static_cast<double>(test.n_ahead)),
         percent(test.stall_share())});
  }
  return columns(lines);
}

std::string prediction(const BenchReport& report) {
  std::vector<Cells> lines{{"test", "predicted tok/s", "of that", "at its hit rate", "of that", "limit"}};
  const auto of = [](const BenchTest& test, const PassPrediction& pass) {
    return fmt::format("{:.2f}", test.median() / pass.tokens_per_second);
  };
  for (const BenchTest& test : report.tests) {
    if (!test.prediction) return "prediction: none without a profile; 'sluice profile MODEL' makes one\n";
    const BenchPrediction& expected = *test.prediction;
    lines.push_back({test.name, fmt::format("{:.2f}", expected.even.tokens_per_second),
                     of(test, expected.even), fmt::format("{:.2f}", expected.at_hit_rate.tokens_per_second),
                     of(test, expected.at_hit_rate), expected.at_hit_rate.limit});
  }
  return columns(lines);
}

}  // namespace

std::string bench_table(const BenchReport& report) {
  std::string text = fmt::format("{}\n{}", facts(report), speed(report));
  if (!report.plan.fully_resident()) text += fmt::format("\n{}", drive(report));
  text += fmt::format("\n{}", prediction(report));
  bool is_first = true;
  for (const BenchTest& test : report.tests) {
    if (!test.noisy()) continue;
    text += fmt::format("{}noisy: {}: its repetitions differ by {} of the median\n", is_first ? "\n" : "",
                        test.name, percent(test.spread()));
    is_first = false;
  }
  return text;
}

}  // namespace sluice::cli
