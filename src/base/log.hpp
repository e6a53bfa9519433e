#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace sluice::base {

/// Tells the warning sink (sluice/warnings.hpp), or writes a line "sluice: warning: ..." to standard error.
/// Each distinct text is told once per process, because a fault that repeats per tensor or per read must not
/// bury the answer.
void warn_text(std::string_view text);

template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  warn_text(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sluice::base
