#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

/// Standard output. Unbuffered, because text is to be seen as it is generated; whatever the locale.
class Output {
 public:
  enum class State {
    good,
    closed,       ///< The reader went away (EPIPE): nobody is interested, so nothing is said.
    failed,       ///< Another error, such as a full disk.
    interrupted,  ///< A signal asked to stop while the reader did not read.
  };

  Output() noexcept;

  /// Writes all bytes of the text as they are, or changes the state. Does nothing unless the state is good.
  /// Returns whether it is. For text that holds nothing of files or models, and for JSON.
  bool write(std::string_view text) noexcept;
  /// Writes lines for people, with control characters shown (base::printable_lines).
  bool print(std::string_view lines);
  /// Writes what a model generated. On a terminal control characters are shown, because a model may print any
  /// sequence that the terminal obeys, and carriage returns are left out; elsewhere bytes stay as they are.
  bool write_answer(std::string_view text);
  /// Writes a newline unless the last byte written was one, or nothing was.
  void end_line() noexcept;

  /// The interruption was dealt with: writing may go on.
  void resume() noexcept {
    if (state_ == State::interrupted) state_ = State::good;
  }

  State state() const noexcept { return state_; }
  /// Throws Error(io) in state failed: the message says what the system said.
  void check() const;

 private:
  State state_ = State::good;
  int errno_ = 0;
  bool is_terminal_;
  char last_ = '\n';
};

/// Writes lines to standard error, with control characters shown (base::printable_lines); errors there have
/// no one to go to.
void print_error_text(std::string_view lines);
/// "sluice: warning: ..." on standard error.
void print_warning(std::string_view text);
/// Writes bytes to standard error as they are: only for sequences that the terminal is to obey.
void write_terminal(std::string_view bytes) noexcept;

/// Occupies descriptors 0 to 2 if the caller closed them, so that no file the program opens can get their
/// numbers; reads and writes on them fail as they would on a closed one.
void reserve_standard_descriptors() noexcept;

}  // namespace sluice::cli
