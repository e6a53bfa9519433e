#pragma once

#include <optional>
#include <string>

#include "cli/line_editor.hpp"
#include "cli/signals.hpp"

namespace sluice::cli {

/// Largest text read into memory at once: far above any context, far below what would hurt.
inline constexpr std::size_t k_max_text_bytes = std::size_t{256} << 20;

/// The whole of a file, or of standard input for "-". Throws Error(io).
std::string read_text(const std::string& path);

/// What a prompt file means: the mark of UTF-8 at its start and one newline at its end, which editors and
/// echo add, do not count, and Windows' line ends are newlines. All other bytes stay, NUL too.
std::string prompt_of_file(std::string text);

/// Messages typed at a terminal. Lines can be edited where standard error is a terminal that can move its
/// cursor; otherwise the terminal itself collects lines, of 4095 bytes at most.
class MessageReader {
 public:
  MessageReader();
  ~MessageReader();
  MessageReader(const MessageReader&) = delete;
  MessageReader& operator=(const MessageReader&) = delete;

  /// Prompts for the next message: typing may begin.
  void begin();
  /// The next message, without the end of its line; nothing at the end of the input, or when a signal asked
  /// to stop. A line that begins with """ goes on over all lines until one that ends with it. Throws
  /// Error(io).
  std::optional<std::string> next();
  /// Whether next() would not wait for the user.
  bool is_ready() const noexcept;
  /// Waits until next() would not, a signal asked to stop or `ms` milliseconds have passed.
  void wait_ready(int ms) const noexcept;

 private:
  std::optional<std::string> next_line();
  std::optional<std::string> edit_line();
  std::optional<std::string> plain_line();
  bool read_more();
  void show();
  void take_terminal();
  void leave_terminal();

  LineEditor editor_;
  bool can_edit_ = false;
  bool has_terminal_ = false;
  TerminalState before_;
  std::string buffer_;  ///< Read, but not looked at.
  bool ended_ = false;
};

bool input_is_terminal() noexcept;

}  // namespace sluice::cli
