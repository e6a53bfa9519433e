#include "cli/input.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "cli/output.hpp"

namespace sluice::cli {

std::string read_text(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  const base::Descriptor file(standard ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = standard ? STDIN_FILENO : file.get();
  if (fd < 0) base::fail(ErrorCode::io, "cannot open {}: {}", name, std::strerror(errno));
  std::string text;
  char block[16 * 1024];
  for (;;) {
    const ssize_t n = read(fd, block, sizeof block);
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

std::string prompt_of_file(std::string text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  std::size_t n_kept = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') text[n_kept++] = text[i];
  }
  text.resize(n_kept);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

MessageReader::MessageReader() : editor_("> ") {
  const char* kind = std::getenv("TERM");
  can_edit_ = isatty(STDERR_FILENO) == 1 && kind != nullptr && *kind != '\0' &&
              std::strcmp(kind, "dumb") != 0 && tcgetattr(STDIN_FILENO, &before_.mode) == 0;
  before_.farewell = "\x1b[?2004l\r\n";
}

MessageReader::~MessageReader() {
  leave_terminal();
}

void MessageReader::take_terminal() {
  if (has_terminal_) return;
  termios mode = before_.mode;
  // Keys come one by one, unseen, and Enter as it is. Ctrl-C still makes a signal; Ctrl-Z is a key, so that
  // the terminal can be put in order first.
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  mode.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IXON);
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  mode.c_cc[VSUSP] = _POSIX_VDISABLE;
  restore_at_end(&before_);
  has_terminal_ = tcsetattr(STDIN_FILENO, TCSADRAIN, &mode) == 0;
  if (has_terminal_) {
    // Asks for brackets around what is pasted.
    write_terminal("\x1b[?2004h");
  } else {
    restore_at_end(nullptr);
    can_edit_ = false;
  }
}

void MessageReader::leave_terminal() {
  if (!has_terminal_) return;
  write_terminal("\x1b[?2004l");
  tcsetattr(STDIN_FILENO, TCSADRAIN, &before_.mode);
  restore_at_end(nullptr);
  has_terminal_ = false;
}

void MessageReader::begin() {
  if (can_edit_) take_terminal();
  if (can_edit_) {
    editor_.forget_screen();
    show();
  } else {
    print_error_text("> ");
  }
}

std::optional<std::string> MessageReader::next() {
  constexpr std::string_view k_block = "\"\"\"";
  std::optional<std::string> line = next_line();
  if (!line || !line->starts_with(k_block)) return line;
  std::string message = line->substr(k_block.size());
  while (!message.ends_with(k_block)) {
    begin();
    line = next_line();
    if (!line) return line;
    message += '\n';
    message += *line;
    if (message.size() > k_max_text_bytes) base::fail(ErrorCode::io, "the message is too long");
  }
  message.resize(message.size() - k_block.size());
  if (message.starts_with('\n')) message.erase(0, 1);
  if (message.ends_with('\n')) message.pop_back();
  return message;
}

std::optional<std::string> MessageReader::next_line() {
  return has_terminal_ ? edit_line() : plain_line();
}

std::optional<std::string> MessageReader::edit_line() {
  using State = LineEditor::State;
  for (;;) {
    std::size_t n_fed = 0;
    State state = State::editing;
    while (n_fed < buffer_.size() && state == State::editing) state = editor_.feed(buffer_[n_fed++]);
    buffer_.erase(0, n_fed);
    if (state == State::ended || (state == State::editing && ended_)) {
      leave_terminal();
      return std::nullopt;
    }
    if (n_fed != 0 && !editor_.in_sequence()) show();
    if (state == State::submitted) {
      write_terminal(editor_.leave());
      leave_terminal();
      return editor_.take();
    }
    if (state == State::suspended) {
      write_terminal(editor_.leave());
      leave_terminal();
      kill(0, SIGTSTP);
      begin();
      continue;
    }
    if (!read_more()) {
      leave_terminal();
      return std::nullopt;
    }
    if (editor_.text().size() > k_max_text_bytes) base::fail(ErrorCode::io, "the message is too long");
  }
}

void MessageReader::show() {
  winsize size = {};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 && size.ws_row != 0;
  write_terminal(is_known ? editor_.draw(size.ws_col, size.ws_row) : editor_.draw(80, 24));
}

std::optional<std::string> MessageReader::plain_line() {
  // Linux cuts what is longer.
  constexpr std::size_t k_longest_line = 4095;
  std::size_t searched = 0;
  for (;;) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.size() == k_longest_line) {
        print_error_text(
            "sluice: note: the terminal takes lines of 4095 bytes and may have cut this one; end lines "
            "earlier "
            "between \"\"\", or give a file with -f\n");
      }
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (ended_) {
      if (buffer_.empty()) return std::nullopt;
      return std::exchange(buffer_, {});
    }
    searched = buffer_.size();
    if (!read_more()) return std::nullopt;
    if (buffer_.size() > k_max_text_bytes) base::fail(ErrorCode::io, "the line is too long");
  }
}

bool MessageReader::read_more() {
  if (!wait_for_input(STDIN_FILENO)) return false;
  char block[8192];
  const ssize_t n = read(STDIN_FILENO, block, sizeof block);
  if (n < 0 && errno != EINTR && errno != EAGAIN)
    base::fail(ErrorCode::io, "cannot read the terminal: {}", std::strerror(errno));
  if (n == 0) ended_ = true;
  if (n > 0) buffer_.append(block, static_cast<std::size_t>(n));
  return true;
}

bool MessageReader::is_ready() const noexcept {
  if (ended_ || (has_terminal_ ? !buffer_.empty() : buffer_.find('\n') != std::string::npos)) return true;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) != 0;
}

void MessageReader::wait_ready(int ms) const noexcept {
  if (!is_ready()) wait_for_input(STDIN_FILENO, ms);
}

bool input_is_terminal() noexcept {
  return isatty(STDIN_FILENO) == 1;
}

}  // namespace sluice::cli
