#include "synth/new_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
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
    : path_(std::move(path)), file_bytes_(file_bytes), may_replace_(may_replace) {
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
  // Writing beyond it would end the process by a signal.
  if (const auto limit = base::file_bytes_limit(); limit && *limit < file_bytes_) {
    base::fail(ErrorCode::io, "{} needs {}, but this process may write files of {} only (ulimit -f)",
               path_.string(), base::format_bytes(file_bytes_), base::format_bytes(*limit));
  }
}

void NewFile::open() {
  const int error = file_.open(path_, {".partial", 0666, may_replace_, 0});
  if (error == EBUSY)
    base::fail(ErrorCode::io, "another process is writing {}; wait for it, or give another name",
               path_.string());
  if (error == EEXIST) {
    base::fail(ErrorCode::io, "{} exists: another process is writing it or was killed; remove it",
               partial().string());
  }
  if (error == EINVAL)
    base::fail(ErrorCode::io, "{} is not a regular file; remove it, or give another name",
               partial().string());
  if (error != 0) fail_errno("create", partial(), error);
  // One extent where the file system can; where it cannot, writing finds out what does not fit.
  int result = 0;
  do {
    result = fallocate(file_.fd(), 0, 0, static_cast<off_t>(file_bytes_));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    fail_errno("reserve space for", partial(), errno);
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
  const std::string_view bytes(reinterpret_cast<const char*>(buffer_.data()), buffer_.size());
  if (const int error = file_.append(bytes); error != 0) {
    base::fail(ErrorCode::io, "cannot write {} at offset {}: {}", partial().string(), n_written_,
               std::strerror(error));
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
  sync_file_range(file_.fd(), offset(begin), offset(n_written_ - begin), SYNC_FILE_RANGE_WRITE);
  n_started_ = n_written_;
  if (begin == n_dropped_) return;
  sync_file_range(file_.fd(), offset(n_dropped_), offset(begin - n_dropped_),
                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  posix_fadvise(file_.fd(), offset(n_dropped_), offset(begin - n_dropped_), POSIX_FADV_DONTNEED);
  n_dropped_ = begin;
}

void NewFile::commit() {
  flush();
  SLUICE_CHECK(n_written_ == file_bytes_);
  // The whole metadata too: the name must not appear before the size does.
  if (fsync(file_.fd()) != 0) fail_errno("write", partial(), errno);
  posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);
  if (const int error = file_.commit(may_replace_); error != 0) fail_errno("rename to", path_, error);
}

}  // namespace sluice::synth
