#include "cli/signals.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sluice::cli {
namespace {

// A signal handler can reach nothing but globals.
std::atomic<bool> g_stop{false};
std::atomic<bool> g_ask_first{false};
std::atomic<int> g_signal{0};
std::atomic<const TerminalState*> g_terminal{nullptr};
// A byte in this pipe wakes a waiting poll() even if the signal came just before it slept, or went to another
// thread.
int g_wake[2] = {-1, -1};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<const TerminalState*>::is_always_lock_free);

[[noreturn]] void end_at_once(int signal) noexcept {
  if (const TerminalState* terminal = g_terminal.load()) {
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal->mode);
    const ssize_t ignored = write(STDERR_FILENO, terminal->farewell, std::strlen(terminal->farewell));
    static_cast<void>(ignored);
  }
  _exit(128 + signal);
}

extern "C" void on_stop_signal(int signal) {
  if (!g_ask_first.load()) end_at_once(signal);
  int expected = 0;
  if (!g_signal.compare_exchange_strong(expected, signal)) end_at_once(signal);
  g_stop.store(true);
  const int saved_errno = errno;
  if (g_wake[1] >= 0) {
    // If the pipe is full the waiter wakes anyway.
    const ssize_t ignored = write(g_wake[1], "", 1);
    static_cast<void>(ignored);
  }
  errno = saved_errno;
}

// Without the pipe a signal that comes at the wrong moment waits for the next key; that is all.
void open_wake_pipe() noexcept {
  if (pipe(g_wake) != 0) {
    g_wake[0] = g_wake[1] = -1;
    return;
  }
  for (const int fd : g_wake) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
  }
}

bool wait_for(int fd, short events, int ms) noexcept {
  for (;;) {
    if (stop_signal() != 0) return false;
    pollfd waited[2] = {{fd, events, 0}, {g_wake[0], POLLIN, 0}};
    const int n = poll(waited, 2, ms);
    if (n == 0) return false;
    if (n < 0 && errno != EINTR) return stop_signal() == 0;  // read() or write() will say what is wrong
    if (n > 0 && stop_signal() == 0 && waited[0].revents != 0) return true;
  }
}

}  // namespace

void ignore_broken_pipes() noexcept {
  signal(SIGPIPE, SIG_IGN);
}

void handle_stop_signals() noexcept {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a write that waits for a reader has to end.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction previous = {};
    // What the caller ignores stays ignored (nohup, a background job of a plain shell). Not as process 1 of a
    // container: what started that has only these signals to stop it with.
    if (sigaction(number, nullptr, &previous) == 0 && previous.sa_handler == SIG_IGN && getpid() != 1)
      continue;
    sigaction(number, &action, nullptr);
  }
}

void catch_stop_signals() noexcept {
  if (g_wake[0] < 0) open_wake_pipe();
  g_ask_first.store(true);
}

SignalsWait::~SignalsWait() {
  g_ask_first.store(false);
  // Later ones end the program in their handler.
  if (const int signal = g_signal.load()) end_at_once(signal);
}

int stop_signal() noexcept {
  return g_signal.load();
}

bool stopped_by_keyboard() noexcept {
  return stop_signal() == SIGINT;
}

void clear_stop_signal() noexcept {
  char drained[16];
  while (g_wake[0] >= 0 && read(g_wake[0], drained, sizeof drained) > 0) {
  }
  g_stop.store(false);
  g_signal.store(0);
}

const std::atomic<bool>* stop_flag() noexcept {
  return &g_stop;
}

bool wait_for_input(int fd, int ms) noexcept {
  return wait_for(fd, POLLIN, ms);
}

bool wait_for_output(int fd) noexcept {
  return wait_for(fd, POLLOUT, -1);
}

void restore_at_end(const TerminalState* state) noexcept {
  g_terminal.store(state);
}

}  // namespace sluice::cli
