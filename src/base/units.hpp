#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::base {

constexpr std::uint64_t k_kib = 1024;
constexpr std::uint64_t k_mib = 1024 * k_kib;
constexpr std::uint64_t k_gib = 1024 * k_mib;

/// "512 B", "18.0 KiB", "1.50 GiB": three significant digits, binary units.
std::string format_bytes(std::uint64_t bytes);

/// Parses "24M", "6GiB", "1.5g", "1048576": binary units, case ignored. Nothing when the text is not a size.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace sluice::base
