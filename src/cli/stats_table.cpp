#include "cli/stats_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/output.hpp"
#include "cli/profile.hpp"

namespace sluice::cli {
namespace {

using base::format_bytes;

std::string percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? "-"
                    : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string seconds(std::uint64_t ns) {
  return fmt::format("{:.3f} s", static_cast<double>(ns) / 1e9);
}

std::string budget_note(const Plan& plan) {
  return fmt::format("from {}{}", plan.budget_source, plan.budget_is_default ? " (default)" : "");
}

void add_items(Table& table, const Plan& plan) {
  for (const PlanItem& item : plan.items) {
    table.row("  " + item.what, format_bytes(item.bytes),
              item.why.empty() ? item.tier : fmt::format("{}; {}", item.tier, item.why));
  }
}

void add_units(Table& table, const Plan& plan) {
  if (plan.n_units == 0) return;
  table.row("slots", fmt::format("{} + {}", plan.n_cached_units, plan.n_transit_units),
            fmt::format("cached + transit, for {} experts of {} each", plan.n_units,
                        format_bytes(plan.unit_bytes)));
}

std::string kernel_note(const Stats& stats) {
  const std::uint64_t ours = stats.read_bytes();
  const std::uint64_t kernel = stats.kernel_read_bytes;
  if (ours == kernel) return "agrees, to the byte";
  const std::uint64_t difference = std::max(ours, kernel) - std::min(ours, kernel);
  // The kernel counts what reached the drive: pages of the program itself, less what it had in its cache.
  return fmt::format("{} {} than counted here ({})", format_bytes(difference),
                     kernel > ours ? "more" : "less", percent(difference, ours));
}

void add_memory(Table& table, const Plan& plan, const Stats& stats) {
  table.heading("memory");
  table.row("budget", format_bytes(stats.budget_bytes), budget_note(plan));
  table.row("peak RSS", format_bytes(stats.peak_rss_bytes),
            percent(stats.peak_rss_bytes, stats.budget_bytes) + " of the budget");
  if (stats.swapped_bytes != 0)
    table.row("swapped out", format_bytes(stats.swapped_bytes), "of this process; it comes back slowly");
  table.row("RSS now", format_bytes(stats.rss_bytes));
  table.row("planned", format_bytes(plan.planned_bytes), "of which");
  add_items(table, plan);
  const auto gave_way = [](const char* of, std::uint64_t n_given, std::uint64_t n_back) {
    return n_given == 0
               ? std::string()
               : fmt::format("{}gave way to others {} times, came back {} times", of, n_given, n_back);
  };
  table.row("pinned weights", format_bytes(stats.pinned_bytes),
            gave_way("blocks ", stats.n_blocks_released, stats.n_blocks_returned));
  table.row("KV cache", format_bytes(stats.kv_bytes), fmt::format("{} tokens", plan.n_ctx));
  if (stats.state_bytes != 0) table.row("recurrent state", format_bytes(stats.state_bytes));
  table.row("scratch", format_bytes(stats.scratch_bytes),
            fmt::format("passes of {} tokens", plan.prefill_chunk));
  table.row("slot memory", format_bytes(stats.slot_bytes), gave_way("", stats.n_shrinks, stats.n_grows));
  if (stats.ring_bytes != 0)
    table.row("ring", format_bytes(stats.ring_bytes), "of weights streamed in every pass");
  add_units(table, plan);
}

/// "; 72 % of the 6.40 GB/s profiled 3 days ago", or nothing.
std::string profile_note(const DriveStats& drive) {
  if (drive.profiled_bytes_per_second <= 0 || drive.busy_ns == 0) return {};
  return fmt::format("; {:.0f} % of the {:.2f} GB/s profiled {}",
                     100 * drive.read_rate() / drive.profiled_bytes_per_second,
                     drive.profiled_bytes_per_second / 1e9, age_text(drive.profiled_at, std::time(nullptr)));
}

void add_read_rate(Table& table, const Stats& stats) {
  const auto text = [](std::uint64_t busy_ns, double rate) {
    return busy_ns == 0 ? "-" : fmt::format("{:.2f} GB/s", rate / 1e9);
  };
  table.row("read rate", text(stats.io_busy_ns, stats.read_rate()),
            fmt::format("{} with a read in flight{}", seconds(stats.io_busy_ns),
                        stats.drives.size() == 1 ? profile_note(stats.drives.front()) : std::string()));
  if (stats.drives.size() < 2) return;
  for (std::size_t i = 0; i < stats.drives.size(); ++i) {
    const DriveStats& drive = stats.drives[i];
    std::string note = fmt::format("{} in {}{}", format_bytes(drive.streamed_read_bytes),
                                   seconds(drive.busy_ns), profile_note(drive));
    if (drive.n_failed_reads != 0) note += fmt::format("; {} reads failed", drive.n_failed_reads);
    table.row(fmt::format("  drive {}", i + 1), text(drive.busy_ns, drive.read_rate()),
              fmt::format("{}; {}", note, base::printable(drive.file)));
  }
}

void add_drive(Table& table, const Stats& stats) {
  table.heading("drive");
  table.row("hit rate", stats.n_wanted() == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * stats.hit_rate()),
            fmt::format("{} hits, {} joins, {} misses", stats.n_hits, stats.n_joins, stats.n_misses));
  if (stats.n_ahead != 0) {
    table.row("look-ahead", percent(stats.n_ahead_used, stats.n_ahead),
              fmt::format("of {} experts read ahead were used next, {} never", stats.n_ahead,
                          stats.n_ahead_wasted));
  }
  if (stats.n_preloaded != 0) {
    table.row("preloaded", fmt::format("{}", stats.n_preloaded),
              "experts that earlier runs used most, read before they were wanted");
  }
  table.row("read", format_bytes(stats.read_bytes()),
            fmt::format("{} to open, {} of streamed weights, {} reads, {} retries",
                        format_bytes(stats.load_read_bytes), format_bytes(stats.streamed_read_bytes),
                        stats.n_reads, stats.n_read_retries));
  if (stats.kernel_read_known) {
    table.row("kernel's count", format_bytes(stats.kernel_read_bytes), kernel_note(stats));
  } else {
    table.row("kernel's count", "-", "not available here");
  }
  add_read_rate(table, stats);
  table.row("stall", seconds(stats.stall_ns),
            percent(stats.stall_ns, stats.prefill_ns + stats.decode_ns) + " of the time spent computing");
  table.row("backend", "", stats.io_backend);
}

std::string rate(double tokens_per_second) {
  return tokens_per_second > 0 ? fmt::format("{:.1f} tok/s", tokens_per_second) : std::string("-");
}

void add_guesses(Table& table, const char* source, const GuessStats& guesses, const std::string& more) {
  if (guesses.n_guessed == 0) return;
  table.row(source, percent(guesses.n_accepted, guesses.n_guessed),
            fmt::format("{} of {} guesses accepted{}", guesses.n_accepted, guesses.n_guessed, more));
}

void add_work(Table& table, const Stats& stats) {
  table.heading("speed");
  table.row("open", seconds(stats.open_ns));
  table.row("prefill", rate(stats.prefill_rate()),
            fmt::format("{} tokens in {}", stats.n_prefill_tokens, seconds(stats.prefill_ns)));
  table.row("decode", rate(stats.decode_rate()),
            fmt::format("{} tokens in {}", stats.n_decode_tokens, seconds(stats.decode_ns)));
  if (stats.n_speculative_passes != 0) {
    table.row(
        "tokens per pass", fmt::format("{:.2f}", stats.tokens_per_pass()),
        fmt::format("{} passes, {} of them with guesses", stats.n_decode_passes, stats.n_speculative_passes));
    add_guesses(table, "lookup", stats.lookup, "");
    add_guesses(table, "draft", stats.draft, fmt::format(", {} for guessing", seconds(stats.draft_ns)));
  }
  table.row("threads", fmt::format("{}", stats.n_threads), stats.isa);
}

}  // namespace

std::string columns(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths(lines.front().size(), 0);
  for (const std::vector<std::string>& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& cells : lines) {
    text += fmt::format("{:<{}}", cells.front(), widths.front());
    for (std::size_t i = 1; i < cells.size(); ++i) text += fmt::format("  {:>{}}", cells[i], widths[i]);
    text += "\n";
  }
  return text;
}

void Table::row(std::string_view label, std::string_view value, std::string_view note) {
  // A newline in a name would break the table.
  rows_.push_back({base::printable(label), base::printable(value), base::printable(note), false});
}

void Table::heading(std::string text) {
  rows_.push_back({std::move(text), {}, {}, true});
}

std::string Table::text() const {
  std::size_t label_width = 0, value_width = 0;
  for (const Row& row : rows_) {
    if (row.is_heading) continue;
    label_width = std::max(label_width, row.label.size());
    value_width = std::max(value_width, row.value.size());
  }
  std::string out;
  for (const Row& row : rows_) {
    std::string line = row.is_heading ? row.label
                                      : fmt::format("  {:<{}}  {:>{}}  {}", row.label, label_width, row.value,
                                                    value_width, row.note);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string plan_table(const Plan& plan) {
  Table table;
  table.row("budget", format_bytes(plan.budget_bytes), budget_note(plan));
  table.row("planned", format_bytes(plan.planned_bytes),
            percent(plan.planned_bytes, plan.budget_bytes) + " of the budget");
  add_items(table, plan);
  add_units(table, plan);
  table.row("on the drive", format_bytes(plan.streamed_bytes),
            plan.fully_resident() ? "everything stays in memory" : "read when needed");
  table.row("smallest budget", format_bytes(plan.floor_bytes));
  table.row("all in memory from", format_bytes(plan.resident_from_bytes));
  table.row(
      "context", fmt::format("{}", plan.n_ctx),
      fmt::format("tokens for each of {} sequences, passes of {}", plan.max_sequences, plan.prefill_chunk));
  return table.text();
}

std::string stats_table(const Plan& plan, const Stats& stats) {
  Table table;
  add_memory(table, plan, stats);
  add_drive(table, stats);
  add_work(table, stats);
  return table.text();
}

std::string layer_table(const Stats& stats) {
  if (stats.layers.empty()) return {};
  std::string out = "layer  slots     hits    joins   misses  read ahead  hit rate\n";
  for (const LayerStats& layer : stats.layers) {
    out += fmt::format("{:5}  {:5}  {:7}  {:7}  {:7}  {:10}  {:>8}\n", layer.layer_idx, layer.n_slots,
                       layer.n_hits, layer.n_joins, layer.n_misses, layer.n_ahead_used,
                       percent(layer.n_hits, layer.n_wanted()));
  }
  return out;
}

std::string format_count(std::uint64_t n) {
  static constexpr const char* k_names[] = {"", " K", " M", " G", " T"};
  double value = static_cast<double>(n);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(k_names)) {
    value /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value < 9.995 ? 2 : 1;
  return fmt::format("{:.{}f}{}", value, digits, k_names[unit]);
}

}  // namespace sluice::cli
