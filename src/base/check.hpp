#pragma once

namespace sluice::base {
/// Prints the failed condition and aborts. For programmer errors only: never reachable from a file or a user.
[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;
}  // namespace sluice::base

#define SLUICE_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::sluice::base::check_failed(#condition, __FILE__, __LINE__))
