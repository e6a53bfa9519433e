#include "base/error.hpp"

#include <cstdio>
#include <cstdlib>

#include "base/check.hpp"

namespace sluice {

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::invalid_file:
      return "invalid_file";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::io:
      return "io";
    case ErrorCode::budget:
      return "budget";
    case ErrorCode::context_full:
      return "context_full";
    case ErrorCode::kv_full:
      return "kv_full";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

namespace base {

void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "sluice: internal check failed: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace base
}  // namespace sluice
