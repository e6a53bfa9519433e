#pragma once

#include <termios.h>

#include <atomic>

namespace sluice::cli {

/// Makes SIGPIPE an ordinary write error.
void ignore_broken_pipes() noexcept;

/// To be called first of all. From now on SIGINT, SIGTERM and SIGHUP end the program at once with 128 + their
/// number, in whatever it does. Without a handler they would do nothing to process 1 of a container.
void handle_stop_signals() noexcept;

/// From now on the first of these signals asks to stop, and stop_signal() has to be looked at; a second one
/// ends the program at once. For work that has something to finish: an answer, a file that is written.
void catch_stop_signals() noexcept;

/// While it lives the first signal only raises stop_flag(), for work that has to leave the terminal clean. At
/// its end the program ends, if one came. Not after catch_stop_signals().
class SignalsWait {
 public:
  SignalsWait() noexcept { catch_stop_signals(); }
  ~SignalsWait();
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;
};

/// The signal that asked to stop, or 0.
int stop_signal() noexcept;
/// Whether that signal was Ctrl-C.
bool stopped_by_keyboard() noexcept;
/// Forgets a signal that was dealt with, so that the next one asks again.
void clear_stop_signal() noexcept;
/// What Model::set_cancel_flag() watches: raised with stop_signal().
const std::atomic<bool>* stop_flag() noexcept;

/// Waits until the descriptor has input or has ended, or for at most `ms` milliseconds when that is not
/// negative. False when a signal asked to stop meanwhile, or before, or the time is over.
bool wait_for_input(int fd, int ms = -1) noexcept;
/// Waits until the descriptor takes output. False when a signal asked to stop meanwhile, or before.
bool wait_for_output(int fd) noexcept;

/// What a signal that ends the program at once leaves behind: the mode of the terminal on standard input, and
/// bytes for the one on standard error.
struct TerminalState {
  termios mode = {};
  const char* farewell = "";
};

/// `state` must outlive its being set; nullptr: there is nothing to restore.
void restore_at_end(const TerminalState* state) noexcept;

}  // namespace sluice::cli
