#include "cli/output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/signals.hpp"

namespace sluice::cli {

Output::Output() noexcept : is_terminal_(isatty(STDOUT_FILENO) == 1) {}

bool Output::write(std::string_view text) noexcept {
  while (state_ == State::good && !text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n > 0) {
      last_ = text[static_cast<std::size_t>(n) - 1];
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      if (stop_signal() != 0) state_ = State::interrupted;
    } else if (n < 0 && errno == EAGAIN) {
      // Another program made it non-blocking, such as the one that started this one.
      if (!wait_for_output(STDOUT_FILENO)) state_ = State::interrupted;
    } else if (n < 0) {
      errno_ = errno;
      state_ = errno_ == EPIPE ? State::closed : State::failed;
    }
  }
  return state_ == State::good;
}

bool Output::print(std::string_view lines) {
  return write(base::printable_lines(lines));
}

bool Output::write_answer(std::string_view text) {
  if (!is_terminal_) return write(text);
  std::string shown(text);
  std::erase(shown, '\r');
  return print(shown);
}

void Output::end_line() noexcept {
  if (last_ != '\n') write("\n");
}

void Output::check() const {
  if (state_ == State::failed)
    base::fail(ErrorCode::io, "cannot write to standard output: {}", std::strerror(errno_));
}

void print_error_text(std::string_view lines) {
  write_terminal(base::printable_lines(lines));
}

void print_warning(std::string_view text) {
  print_error_text(fmt::format("sluice: warning: {}\n", base::printable(text)));
}

void write_terminal(std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      if (!wait_for_output(STDERR_FILENO)) return;
    } else if (n < 0 && errno != EINTR) {
      return;
    }
  }
}

void reserve_standard_descriptors() noexcept {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // Opened in the direction in which it is never used, so that use fails. The lowest free number is `fd`.
    const int opened = open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    if (opened != fd && opened >= 0) close(opened);
  }
}

}  // namespace sluice::cli
