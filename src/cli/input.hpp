#pragma once

#include <optional>
#include <string>

namespace sluice::cli {

/// Largest text read into memory at once: far above any context, far below what would hurt.
inline constexpr std::size_t k_max_text_bytes = std::size_t{256} << 20;

/// The whole of a file, or of standard input for "-". Throws Error(io).
std::string read_text(const std::string& path);

/// Lines typed at a terminal.
class LineReader {
 public:
  /// The next line without its end; nothing at the end of the input, or when a signal asked to stop. Throws
  /// Error(io).
  std::optional<std::string> next();
  /// Whether next() would not wait for the user.
  bool is_ready() const noexcept;
  /// Waits until next() would not, a signal asked to stop or `ms` milliseconds have passed.
  void wait_ready(int ms) const noexcept;

 private:
  std::string buffer_;
  bool ended_ = false;
};

bool input_is_terminal() noexcept;

}  // namespace sluice::cli
