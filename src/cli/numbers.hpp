#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::cli {

/// Largest whole number that every reader of JSON takes as it is, 2^53 - 1.
inline constexpr std::uint64_t k_max_json_number = (std::uint64_t{1} << 53) - 1;

/// What an option's whole number may be.
struct WholeRange {
  std::uint64_t least = 0, most = 0xffff'ffffu;
  /// What 0 means, for the help and for errors; empty: nothing special.
  std::string_view zero = {};
  /// What -1 stands for where users of other programs know it: that number. Nothing: -1 is refused.
  std::optional<std::uint64_t> minus_one = std::nullopt;
};

/// Reads all of the text as a whole number. Throws UsageError with what was expected, what 0 means and what
/// was found.
std::uint64_t parse_whole(std::string_view text, const WholeRange& range);

struct DecimalRange {
  double least = 0, most = 0;
  bool above = false;  ///< `least` itself is too small.
  std::string_view zero = {};
};

/// The same for a decimal number, which is finite.
double parse_decimal(std::string_view text, const DecimalRange& range);

}  // namespace sluice::cli
