#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

/// Standard output. Unbuffered, because text is to be seen as it is generated; bytes are written as they are,
/// whatever the locale.
class Output {
 public:
  enum class State {
    good,
    closed,       ///< The reader went away (EPIPE): nobody is interested, so nothing is said.
    failed,       ///< Another error, such as a full disk.
    interrupted,  ///< A signal asked to stop while the reader did not read.
  };

  /// Writes all of the text, or changes the state. Does nothing unless the state is good. Returns whether it
  /// is.
  bool write(std::string_view text) noexcept;
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
  char last_ = '\n';
};

/// Writes to standard error; errors there have no one to go to.
void print_error_text(std::string_view text) noexcept;

/// Text from a file, fit for a terminal: control characters, which could move the cursor or worse, become
/// \xNN.
std::string printable(std::string_view text);

/// Occupies descriptors 0 to 2 if the caller closed them, so that no file the program opens can get their
/// numbers; reads and writes on them fail as they would on a closed one.
void reserve_standard_descriptors() noexcept;

}  // namespace sluice::cli
