#include "synth/new_file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::synth {
namespace {

constexpr std::size_t k_write_bytes = 4u << 20;
/// How much may be waiting for the drive before the next part is started.
constexpr std::uint64_t k_window_bytes = 64u << 20;

[[noreturn]] void fail_errno(const char* action, const std::filesystem::path& path, int error) {
  base::fail(ErrorCode::io, "cannot {} {}: {}", action, path.string(), std::strerror(error));
}

}  // namespace

NewFile::NewFile(std::filesystem::path path, std::uint64_t file_bytes, bool may_replace)
    : path_(std::move(path)),
      partial_(path_.string() + ".partial"),
      file_bytes_(file_bytes),
      may_replace_(may_replace) {
  struct stat status = {};
  if (stat(path_.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode))
      base::fail(ErrorCode::invalid_argument, "{} is not a regular file; give another name", path_.string());
    if (!may_replace_) {
      base::fail(ErrorCode::invalid_argument,
                 "{} exists and is not replaced without being asked to (--force); give another name",
                 path_.string());
    }
  }
  check_room();
  buffer_.reserve(k_write_bytes);
  open();
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(partial_.c_str());
}

void NewFile::check_room() const {
  const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
  struct statvfs space = {};
  if (statvfs(parent.c_str(), &space) != 0) fail_errno("write to folder", parent, errno);
  const std::uint64_t free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (free_bytes < file_bytes_) {
    base::fail(ErrorCode::io, "{} needs {}, but {} has {} free; fewer layers or a smaller type take less",
               path_.string(), base::format_bytes(file_bytes_), parent.string(),
               base::format_bytes(free_bytes));
  }
  struct rlimit limit = {};
  // Writing beyond it would end the process by a signal.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < file_bytes_) {
    base::fail(ErrorCode::io, "{} needs {}, but this process may write files of {} only (ulimit -f)",
               path_.string(), base::format_bytes(file_bytes_), base::format_bytes(limit.rlim_cur));
  }
}

void NewFile::open() {
  if (may_replace_) unlink(partial_.c_str());
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0 && errno == EEXIST) {
    base::fail(ErrorCode::io, "{} exists: another process is writing it or was killed; remove it",
               partial_.string());
  }
  if (fd_ < 0) fail_errno("create", partial_, errno);
  // One extent where the file system can; where it cannot, writing finds out what does not fit.
  int result = 0;
  do {
    result = fallocate(fd_, 0, 0, static_cast<off_t>(file_bytes_));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    const int error = errno;
    close(std::exchange(fd_, -1));
    unlink(partial_.c_str());
    fail_errno("reserve space for", partial_, error);
  }
}

void NewFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n_here = std::min(bytes.size(), k_write_bytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n_here));
    bytes = bytes.subspan(n_here);
    if (buffer_.size() == k_write_bytes) flush();
  }
}

void NewFile::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      base::fail(ErrorCode::io, "cannot write {} at offset {}: {}", partial_.string(), n_written_ + done,
                 std::strerror(errno));
    }
    done += static_cast<std::size_t>(n);
  }
  n_written_ += buffer_.size();
  buffer_.clear();
  if (n_written_ - n_started_ >= k_window_bytes) push_to_drive();
}

// While one window is being written, the one before it leaves the cache: neither piles up in memory nor
// pushes out what other programs use. Errors show again in commit().
void NewFile::push_to_drive() {
  const auto offset = [](std::uint64_t bytes) { return static_cast<off_t>(bytes); };
  const std::uint64_t begin = n_started_;
  sync_file_range(fd_, offset(begin), offset(n_written_ - begin), SYNC_FILE_RANGE_WRITE);
  n_started_ = n_written_;
  if (begin == n_dropped_) return;
  sync_file_range(fd_, offset(n_dropped_), offset(begin - n_dropped_),
                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  posix_fadvise(fd_, offset(n_dropped_), offset(begin - n_dropped_), POSIX_FADV_DONTNEED);
  n_dropped_ = begin;
}

void NewFile::commit() {
  flush();
  SLUICE_CHECK(n_written_ == file_bytes_);
  // The whole metadata too: the name must not appear before the size does.
  if (fsync(fd_) != 0) fail_errno("write", partial_, errno);
  posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  rename_to_final();
  close(std::exchange(fd_, -1));
}

void NewFile::rename_to_final() {
  if (!may_replace_) {
    // A file that appeared meanwhile is not replaced either.
    if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS) fail_errno("rename to", path_, errno);
  }
  if (rename(partial_.c_str(), path_.c_str()) != 0) fail_errno("rename to", path_, errno);
}

}  // namespace sluice::synth
