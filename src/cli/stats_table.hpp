#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/plan.hpp"
#include "sluice/stats.hpp"

namespace sluice::cli {

/// Lines of three columns: label, value (to the right), note (to the left).
class Table {
 public:
  void row(std::string_view label, std::string_view value, std::string_view note = {});
  /// A line of its own between groups of rows.
  void heading(std::string text);
  std::string text() const;

 private:
  struct Row {
    std::string label, value, note;
    bool is_heading;
  };
  std::vector<Row> rows_;
};

/// Columns two blanks apart, the first to the left, the others to the right. Every line has as many cells as
/// the first.
std::string columns(const std::vector<std::vector<std::string>>& lines);

/// What lies where, and how much of the budget that takes.
std::string plan_table(const Plan& plan);

/// Everything that was counted while the model ran.
std::string stats_table(const Plan& plan, const Stats& stats);

/// What was counted of every layer that has experts; empty when none has.
std::string layer_table(const Stats& stats);

/// "29.1 M"
std::string format_count(std::uint64_t n);

}  // namespace sluice::cli
