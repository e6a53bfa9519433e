#pragma once

#include <atomic>

namespace sluice::cli {

/// Makes SIGPIPE an ordinary write error.
void ignore_broken_pipes() noexcept;

/// From now on the first SIGINT, SIGTERM or SIGHUP asks to stop instead of ending the process; a second one
/// ends it at once.
void catch_stop_signals() noexcept;

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

}  // namespace sluice::cli
