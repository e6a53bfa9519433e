#include "base/units.hpp"

#include <fmt/core.h>

#include <cctype>
#include <charconv>
#include <cmath>

namespace sluice::base {

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* k_names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(k_names)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, k_names[unit]);
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) return std::nullopt;
  std::string unit;
  for (const char* p = rest; p != end; ++p) {
    if (*p != ' ') unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*p))));
  }
  static constexpr std::string_view k_prefixes = "kmgt";
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const auto power = k_prefixes.find(unit.front());
    const std::string_view tail = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || !(tail.empty() || tail == "b" || tail == "ib"))
      return std::nullopt;
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  const double bytes = value * factor;
  if (!(bytes < 18446744073709549568.0)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace sluice::base
