#pragma once

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <string>

namespace sluice::test {

/// A terminal whose other end the test holds.
class Terminal {
 public:
  Terminal() {
    user_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (user_ < 0 || grantpt(user_) != 0 || unlockpt(user_) != 0) return;
    program_ = open(ptsname(user_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    termios mode = {};
    if (program_ < 0 || tcgetattr(program_, &mode) != 0) return;
    mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ready_ = tcsetattr(program_, TCSANOW, &mode) == 0;
  }
  ~Terminal() {
    if (program_ >= 0) close(program_);
    if (user_ >= 0) close(user_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// What the program has written to it and nobody has read; waits up to `ms` for the first of it.
  std::string seen(int ms = 0) const {
    std::string text;
    std::array<char, 4096> block;
    pollfd wait{user_, POLLIN, 0};
    while (poll(&wait, 1, text.empty() ? ms : 0) == 1) {
      const ssize_t n = read(user_, block.data(), block.size());
      if (n <= 0) break;
      text.append(block.data(), static_cast<std::size_t>(n));
    }
    return text;
  }

  /// Reads until `part` was seen, for a minute at most.
  std::string seen_until(const std::string& part) const {
    std::string text;
    for (int i = 0; i < 600 && text.find(part) == std::string::npos; ++i) text += seen(100);
    return text;
  }

  bool ready() const noexcept { return ready_; }
  int program_end() const noexcept { return program_; }
  bool type(const std::string& text) const {
    return write(user_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }
  /// Whether the terminal itself collects lines, as a shell expects to find it.
  bool collects_lines() const {
    termios mode = {};
    return tcgetattr(program_, &mode) == 0 && (mode.c_lflag & ICANON) != 0;
  }

 private:
  int user_ = -1;
  int program_ = -1;
  bool ready_ = false;
};

#define SLUICE_NEEDS_TERMINAL(name) \
  const Terminal name;              \
  if (!name.ready()) GTEST_SKIP() << "needs a pseudo-terminal"

}  // namespace sluice::test
