#pragma once

#include <filesystem>
#include <string>

#include "sluice/error.hpp"
#include "sluice/replay.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice::test {

inline RoutingTrace read_text_trace(const std::string& text, std::uint32_t n_experts = 0) {
  static const TempDir dir;
  write_bytes(dir / "trace", text.data(), text.size());
  return read_trace(dir / "trace", n_experts);
}

/// The message of the Error(invalid_file) that reading the text ends with; without the path.
inline std::string trace_error(const std::string& text, std::uint32_t n_experts = 0) {
  try {
    read_text_trace(text, n_experts);
  } catch (const Error& error) {
    const std::string message = error.what();
    const std::size_t start = message.find("trace: ");
    return error.code() == ErrorCode::invalid_file && start != std::string::npos ? message.substr(start + 7)
                                                                                 : "(other) " + message;
  }
  return "(none)";
}

}  // namespace sluice::test
