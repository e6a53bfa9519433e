#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "cli/signals.hpp"

namespace sluice::cli {

bool Output::write(std::string_view text) noexcept {
  while (state_ == State::good && !text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n > 0) {
      last_ = text[static_cast<std::size_t>(n) - 1];
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      if (stop_signal() != 0) state_ = State::interrupted;
    } else if (n < 0) {
      errno_ = errno;
      state_ = errno_ == EPIPE ? State::closed : State::failed;
    }
  }
  return state_ == State::good;
}

void Output::end_line() noexcept {
  if (last_ != '\n') write("\n");
}

void Output::check() const {
  if (state_ == State::failed)
    base::fail(ErrorCode::io, "cannot write to standard output: {}", std::strerror(errno_));
}

void print_error_text(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
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
