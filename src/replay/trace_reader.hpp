#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "replay/line_source.hpp"
#include "sluice/replay.hpp"

namespace sluice::replay {

// Limits of what a trace may claim. Ids are kept in 16 bits, the highest of which means "not recorded".
constexpr std::uint64_t k_max_layers = 4096;
constexpr std::uint64_t k_max_experts = RoutingTrace::k_not_recorded;
constexpr std::uint64_t k_max_used = 1024;
constexpr std::uint64_t k_max_tokens = std::uint64_t{1} << 24;
constexpr std::uint64_t k_max_ids = std::uint64_t{1} << 27;  ///< 256 MiB in memory.
constexpr std::size_t k_max_name_bytes = 4096;
constexpr std::uint32_t k_default_prompt_chunk = 512;  ///< What the planner takes when memory allows.

/// Throws Error(invalid_file) that names path and line.
template <typename... Args>
[[noreturn]] void fail_line(const LineSource& lines, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorCode::invalid_file, "{}: line {}: {}", lines.path(), lines.line(),
             fmt::format(format, std::forward<Args>(args)...));
}

/// Adds a token with no layer recorded. Throws beyond k_max_ids. The trace's shape must be known.
void add_token(RoutingTrace& trace, bool is_prompt, const LineSource& lines);

/// Reads the rest of a JSON-lines trace whose first line is `first`.
void read_json_lines(std::string_view first, LineSource& lines, RoutingTrace& trace);
/// Reads the rest of a CSV trace; its first line "# route_trace v1" has been read.
void read_route_csv(LineSource& lines, RoutingTrace& trace);

}  // namespace sluice::replay
