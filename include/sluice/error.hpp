#pragma once

#include <stdexcept>
#include <string>

namespace sluice {

/// What kind of operating error ended an operation. The message of the Error says what happened, where (path,
/// tensor, byte offset), what was expected, what was found, and the likely cure.
enum class ErrorCode {
  invalid_argument,  ///< A caller's option or request makes no sense; nothing was changed.
  invalid_file,      ///< The model file is damaged, truncated, foreign or inconsistent.
  unsupported,       ///< The file is valid but uses something this version cannot run.
  io,                ///< The operating system failed to open or read a file.
  budget,            ///< The memory budget cannot hold what was asked for.
  context_full,      ///< The sequence has no room for more tokens.
  kv_full,           ///< The KV cache that sequences share has no room for more tokens.
  cancelled,         ///< The caller asked to stop.
  internal,          ///< An invariant of the library was broken; please report it.
};

/// Returns a stable lower-case name such as "invalid_file", for logs and JSON.
const char* error_code_name(ErrorCode code) noexcept;

/// The only exception type the library throws on purpose; GenerationError (sluice/generate.hpp) is one of it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace sluice
