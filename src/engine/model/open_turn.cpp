#include "engine/model/open_turn.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/clock.hpp"

namespace sluice::engine {

std::filesystem::path OpenTurn::place(const std::string& group) {
  std::string name = fmt::format("sluice-open-{}", getuid());
  constexpr std::size_t k_max_name = 200;
  for (const char c : group) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (name.size() < k_max_name) name += is_plain ? c : '-';
  }
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool is_usable = runtime != nullptr && runtime[0] == '/';
  return std::filesystem::path(is_usable ? runtime : "/tmp") / (name + ".lock");
}

OpenTurn::OpenTurn(const std::filesystem::path& path, std::uint64_t wait_ns,
                   const std::atomic<bool>* cancel) {
  constexpr auto k_pause = std::chrono::milliseconds(10);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  struct stat facts = {};
  // In a folder for everybody the name may be somebody else's.
  if (fstat(fd, &facts) != 0 || facts.st_uid != getuid() || !S_ISREG(facts.st_mode)) {
    close(fd);
    return;
  }
  const std::uint64_t start = base::now_ns();
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const bool can_wait = errno == EWOULDBLOCK || errno == EINTR;
    if (!can_wait || base::now_ns() - start >= wait_ns || (cancel != nullptr && *cancel)) {
      close(fd);
      return;
    }
    std::this_thread::sleep_for(k_pause);
  }
  fd_ = fd;
}

// The file stays: whoever removed it might take it from one who has just opened it.
OpenTurn::~OpenTurn() {
  if (fd_ >= 0) close(fd_);
}

OpenTurn::OpenTurn(OpenTurn&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

OpenTurn& OpenTurn::operator=(OpenTurn&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace sluice::engine
