#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/check.hpp"
#include "base/clock.hpp"

namespace sluice::base {
namespace {

// The name may change hands between opening and locking, as often as others write; more is no coincidence.
constexpr int k_max_attempts = 100;

}  // namespace

std::optional<std::uint64_t> file_bytes_limit() noexcept {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

bool AtomicFile::owns_name() const noexcept {
  struct stat own = {}, named = {};
  return fstat(file_.get(), &own) == 0 && lstat(partial_.c_str(), &named) == 0 &&
         own.st_ino == named.st_ino && own.st_dev == named.st_dev;
}

// EAGAIN: worth another attempt, at once or, when *is_busy, after a while.
int AtomicFile::try_open(const Options& options, bool* is_busy) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = Descriptor(::open(partial_.c_str(), options.may_take_over ? flags : flags | O_EXCL, options.mode));
  if (!file_) return errno == EISDIR || errno == ELOOP || errno == ENXIO ? EINVAL : errno;
  struct stat status = {};
  if (fstat(file_.get(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return EINVAL;
  // File systems without locks have one writer at a time or mix them, as all programs there.
  if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
    *is_busy = true;
    return EAGAIN;
  }
  // Who had it may have renamed or removed it just before giving up the lock.
  if (!owns_name()) return EAGAIN;
  return ftruncate(file_.get(), 0) == 0 ? 0 : errno;
}

int AtomicFile::open(const std::filesystem::path& path, const Options& options) {
  SLUICE_CHECK(!file_ && partial_.empty());
  path_ = path;
  partial_ = path.string() + options.suffix;
  const std::uint64_t end_ns = now_ns() + options.patience_ns;
  for (int attempt = 0;;) {
    bool is_busy = false;
    const int error = try_open(options, &is_busy);
    if (error == 0) return 0;
    file_.reset();  // Not discard(): the name is somebody else's.
    if (error != EAGAIN) return error;
    if (is_busy ? now_ns() >= end_ns : ++attempt == k_max_attempts) return EBUSY;
    const struct timespec pause = {0, 5'000'000};
    if (is_busy) nanosleep(&pause, nullptr);
  }
}

int AtomicFile::append(std::string_view bytes) {
  const auto limit = file_bytes_limit();
  if (limit && (n_appended_ > *limit || bytes.size() > *limit - n_appended_)) return EFBIG;
  n_appended_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t n = write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

int AtomicFile::commit(bool may_replace) {
  if (!owns_name()) return ESTALE;
  if (!may_replace) {
    // A file that appeared meanwhile is not replaced either.
    if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) {
      file_.reset();
      return 0;
    }
    if (errno != EINVAL && errno != ENOSYS) return errno;
    struct stat status = {};
    if (lstat(path_.c_str(), &status) == 0) return EEXIST;
  }
  if (rename(partial_.c_str(), path_.c_str()) != 0) return errno;
  file_.reset();
  return 0;
}

void AtomicFile::discard() noexcept {
  if (file_ && owns_name()) unlink(partial_.c_str());
  file_.reset();
}

}  // namespace sluice::base
