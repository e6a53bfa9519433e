#include "cli/input.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"
#include "cli/signals.hpp"

namespace sluice::cli {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ > STDERR_FILENO) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string read_text(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  const Descriptor file(standard ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) base::fail(ErrorCode::io, "cannot open {}: {}", name, std::strerror(errno));
  std::string text;
  char block[16 * 1024];
  for (;;) {
    const ssize_t n = read(file.get(), block, sizeof block);
    if (n == 0) return text;
    if (n < 0) {
      if (errno == EINTR) continue;
      base::fail(ErrorCode::io, "cannot read {}: {}", name, std::strerror(errno));
    }
    text.append(block, static_cast<std::size_t>(n));
    if (text.size() > k_max_text_bytes) {
      base::fail(ErrorCode::io, "{} is longer than {}, the most text that is read", name,
                 base::format_bytes(k_max_text_bytes));
    }
  }
}

std::optional<std::string> LineReader::next() {
  std::size_t searched = 0;
  for (;;) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (ended_) {
      if (buffer_.empty()) return std::nullopt;
      return std::exchange(buffer_, {});
    }
    searched = buffer_.size();
    if (!wait_for_input(STDIN_FILENO)) return std::nullopt;
    char block[4096];
    const ssize_t n = read(STDIN_FILENO, block, sizeof block);
    if (n < 0 && errno != EINTR)
      base::fail(ErrorCode::io, "cannot read the terminal: {}", std::strerror(errno));
    if (n == 0) ended_ = true;
    if (n > 0) buffer_.append(block, static_cast<std::size_t>(n));
    if (buffer_.size() > k_max_text_bytes) base::fail(ErrorCode::io, "the line is too long");
  }
}

bool LineReader::is_ready() const noexcept {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ended_ || buffer_.find('\n') != std::string::npos || poll(&input, 1, 0) != 0;
}

void LineReader::wait_ready(int ms) const noexcept {
  if (!is_ready()) wait_for_input(STDIN_FILENO, ms);
}

bool input_is_terminal() noexcept {
  return isatty(STDIN_FILENO) == 1;
}

}  // namespace sluice::cli
