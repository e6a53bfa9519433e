#include "cli/numbers.hpp"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "cli/options.hpp"

namespace sluice::cli {
namespace {

template <typename T>
std::optional<T> read_all(std::string_view text) {
  // from_chars knows no plus sign.
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string zero_text(std::string_view zero) {
  return zero.empty() ? std::string() : fmt::format(" (0: {})", zero);
}

}  // namespace

std::uint64_t parse_whole(std::string_view text, const WholeRange& range) {
  if (range.minus_one && text == "-1") return *range.minus_one;
  const auto value = read_all<std::uint64_t>(text);
  if (value && *value >= range.least && *value <= range.most) return *value;
  throw UsageError(fmt::format("expected a whole number from {} to {}{}, found '{}'", range.least, range.most,
                               zero_text(range.zero), text));
}

double parse_decimal(std::string_view text, const DecimalRange& range) {
  const auto value = read_all<double>(text);
  // Written so that NaN fails.
  const bool is_inside =
      value && (range.above ? *value > range.least : *value >= range.least) && *value <= range.most;
  if (is_inside && std::isfinite(*value)) return *value;
  const bool has_top = range.most < std::numeric_limits<float>::max();
  const std::string bounds = !has_top
                                 ? fmt::format("{} {}", range.above ? "above" : "of at least", range.least)
                             : range.above ? fmt::format("above {} and up to {}", range.least, range.most)
                                           : fmt::format("from {} to {}", range.least, range.most);
  throw UsageError(fmt::format("expected a number {}{}, found '{}'", bounds, zero_text(range.zero), text));
}

}  // namespace sluice::cli
