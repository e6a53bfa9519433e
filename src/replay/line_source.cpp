#include "replay/line_source.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace sluice::replay {

LineSource::LineSource(const std::string& path) : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) base::fail(ErrorCode::io, "cannot open trace {}: {}", path, std::strerror(errno));
}

LineSource::~LineSource() {
  close(fd_);
}

bool LineSource::fill() {
  constexpr std::size_t k_block_bytes = 64 * 1024;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t old_size = buffer_.size();
  buffer_.resize(old_size + k_block_bytes);
  ssize_t n = 0;
  do {
    n = read(fd_, buffer_.data() + old_size, k_block_bytes);
  } while (n < 0 && errno == EINTR);
  const int error = errno;
  buffer_.resize(old_size + static_cast<std::size_t>(n > 0 ? n : 0));
  if (n < 0) base::fail(ErrorCode::io, "cannot read trace {}: {}", path_, std::strerror(error));
  return n > 0;
}

std::optional<std::string_view> LineSource::next() {
  std::size_t searched = 0;
  for (;;) {
    const std::size_t found = buffer_.find('\n', begin_ + searched);
    const std::size_t length = (found == std::string::npos ? buffer_.size() : found) - begin_;
    if (length > k_max_line_bytes) {
      base::fail(ErrorCode::invalid_file, "{}: line {} is longer than {} bytes; this is no routing trace",
                 path_, line_ + 1, k_max_line_bytes);
    }
    if (found == std::string::npos && !ended_) {
      searched = length;
      ended_ = !fill();
      continue;
    }
    if (found == std::string::npos && length == 0) return std::nullopt;
    ++line_;
    std::string_view line = std::string_view(buffer_).substr(begin_, length);
    begin_ += length + (found == std::string::npos ? 0 : 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }
}

}  // namespace sluice::replay
