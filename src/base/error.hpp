#pragma once

#include <fmt/core.h>

#include <utility>

#include "sluice/error.hpp"

namespace sluice::base {

/// Throws sluice::Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sluice::base
