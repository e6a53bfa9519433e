#include "storage/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::storage {
namespace {

constexpr std::uint32_t k_default_alignment_bytes = 4096;
constexpr std::uint32_t k_min_alignment_bytes = 512;
constexpr std::uint32_t k_max_alignment_bytes = 1u << 20;
constexpr std::uint64_t k_bounce_bytes = base::k_mib;
// Largest single read: far below the kernel's own limit of 2 GiB, large enough for any drive.
constexpr std::uint64_t k_max_read_bytes = 8 * base::k_mib;
// Largest page that the page cache uses; divides k_max_read_bytes.
constexpr std::uint64_t k_cache_page_bytes = 2 * base::k_mib;
// Buffered reads of this size and more leave the page cache again.
constexpr std::uint64_t k_drop_cache_bytes = 64 * base::k_kib;
constexpr std::uint64_t k_window_bytes = 64 * base::k_kib;
constexpr int k_max_retries = 100;

struct FreeDeleter {
  void operator()(std::byte* data) const noexcept { std::free(data); }
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeDeleter>;

AlignedBuffer make_aligned_buffer(std::uint64_t bytes, std::uint32_t alignment) {
  void* const data = std::aligned_alloc(alignment, base::align_up(bytes, alignment));
  if (data == nullptr) {
    base::fail(ErrorCode::budget, "no memory for a read buffer of {}", base::format_bytes(bytes));
  }
  return AlignedBuffer(static_cast<std::byte*>(data));
}

int open_retrying(const char* path, int flags) {
  for (int attempt = 0;; ++attempt) {
    const int fd = open(path, flags);
    if (fd >= 0 || errno != EINTR || attempt == k_max_retries) return fd;
  }
}

// O_NOATIME spares a metadata write per read, and only a file's owner may ask for it.
int open_for_reading(const char* path, int extra_flags) {
  const int flags = O_RDONLY | O_CLOEXEC | extra_flags;
#ifdef O_NOATIME
  const int fd = open_retrying(path, flags | O_NOATIME);
  if (fd >= 0 || errno != EPERM) return fd;
#endif
  return open_retrying(path, flags);
}

[[noreturn]] void fail_open(const std::string& path, int error) {
  const bool is_full = error == EMFILE || error == ENFILE;
  base::fail(ErrorCode::io, "cannot open {}: {}{}", path, std::strerror(error),
             is_full ? " (each file of a model takes two descriptors; raise the limit, \"ulimit -n\")" : "");
}

const char* kind_name(mode_t mode) noexcept {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISSOCK(mode)) return "a socket";
  return "no regular file";
}

// One pread with EINTR retried: bytes read or a negated errno.
std::int64_t read_once(int fd, std::byte* out, std::uint64_t bytes, std::uint64_t offset) noexcept {
  for (int attempt = 0;; ++attempt) {
    const ssize_t n = pread(fd, out, bytes, static_cast<off_t>(offset));
    if (n >= 0) return n;
    if ((errno != EINTR && errno != EAGAIN) || attempt == k_max_retries) return -errno;
  }
}

enum class DirectSupport { unknown, refused, known };

// What the kernel says about direct reads (STATX_DIOALIGN, Linux 6.1). The raw call and layout, because the C
// library's headers may be older than the kernel: stx_dio_mem_align and stx_dio_offset_align at 0x98 and
// 0x9c.
DirectSupport query_alignment(int fd, std::uint32_t* alignment) {
#if defined(SYS_statx) && defined(AT_EMPTY_PATH)
  constexpr std::uint32_t k_statx_dioalign = 0x2000;
  alignas(8) unsigned char raw[256] = {};
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, k_statx_dioalign, raw) != 0) return DirectSupport::unknown;
  std::uint32_t mask = 0, memory_align = 0, offset_align = 0;
  std::memcpy(&mask, raw, sizeof mask);
  std::memcpy(&memory_align, raw + 0x98, sizeof memory_align);
  std::memcpy(&offset_align, raw + 0x9c, sizeof offset_align);
  if ((mask & k_statx_dioalign) == 0) return DirectSupport::unknown;
  if (memory_align == 0 || offset_align == 0) return DirectSupport::refused;
  const std::uint32_t larger = std::max({memory_align, offset_align, k_min_alignment_bytes});
  if (!base::is_power_of_two(larger) || larger > k_max_alignment_bytes) return DirectSupport::refused;
  *alignment = larger;
  return DirectSupport::known;
#else
  (void)fd;
  (void)alignment;
  return DirectSupport::unknown;
#endif
}

// Only whole pages are dropped, so the range is widened to the pages it touches.
void drop_page_cache([[maybe_unused]] int fd, [[maybe_unused]] std::uint64_t offset,
                     [[maybe_unused]] std::uint64_t bytes) noexcept {
#ifdef POSIX_FADV_DONTNEED
  const std::uint64_t begin = base::align_down(offset, k_default_alignment_bytes);
  const std::uint64_t end = base::align_up(offset + bytes, k_default_alignment_bytes);
  posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
#endif
}

[[noreturn]] void fail_read(const std::string& path, std::uint64_t offset, std::uint64_t bytes,
                            std::int64_t error) {
  base::fail(ErrorCode::io, "cannot read {}: {} bytes at offset {}: {}", path, bytes, offset,
             std::strerror(static_cast<int>(-error)));
}

[[noreturn]] void fail_truncated(const std::string& path, std::uint64_t size, std::uint64_t end) {
  base::fail(
      ErrorCode::io,
      "{} ends at offset {} but had {} bytes when it was opened: it was truncated meanwhile (fetch it again)",
      path, end, size);
}

}  // namespace

std::unique_ptr<File> File::open(const std::string& path, bool want_direct) {
  std::unique_ptr<File> file(new File());
  file->path_ = path;
  // O_NONBLOCK so that opening a pipe does not hang until somebody writes.
  file->buffered_fd_ = open_for_reading(path.c_str(), O_NONBLOCK);
  if (file->buffered_fd_ < 0) fail_open(path, errno);
  struct stat info {};
  if (fstat(file->buffered_fd_, &info) != 0) {
    base::fail(ErrorCode::io, "cannot examine {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode)) {
    base::fail(ErrorCode::io, "cannot read {}: it is {}, expected a regular file or a block device", path,
               kind_name(info.st_mode));
  }
  // io_uring takes O_NONBLOCK as "fail rather than wait for the drive".
  const int flags = fcntl(file->buffered_fd_, F_GETFL);
  if (flags < 0 || fcntl(file->buffered_fd_, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    base::fail(ErrorCode::io, "cannot set up {}: {}", path, std::strerror(errno));
  }
  const off_t end = lseek(file->buffered_fd_, 0, SEEK_END);  // Unlike st_size, right for block devices too.
  if (end < 0) base::fail(ErrorCode::io, "cannot find the size of {}: {}", path, std::strerror(errno));
  if (end == 0)
    base::fail(ErrorCode::invalid_file, "cannot read {}: it is empty (was the download interrupted?)", path);
  file->size_bytes_ = static_cast<std::uint64_t>(end);
  file->device_ = static_cast<std::uint64_t>(S_ISBLK(info.st_mode) ? info.st_rdev : info.st_dev);
#ifdef POSIX_FADV_RANDOM
  // Read-ahead would fetch bytes nobody asked for; this runtime reads ahead itself.
  posix_fadvise(file->buffered_fd_, 0, 0, POSIX_FADV_RANDOM);
#endif
  if (want_direct) {
    file->open_direct();
  } else {
    file->why_not_direct_ = "not asked for";
  }
  return file;
}

File::~File() {
  if (direct_fd_ >= 0) close(direct_fd_);
  if (buffered_fd_ >= 0) close(buffered_fd_);
}

void File::open_direct() {
#ifdef O_DIRECT
  direct_fd_ = open_for_reading(path_.c_str(), O_DIRECT);
  if (direct_fd_ < 0) {
    // Not a refusal: reading through the page cache instead would only hide the cause.
    if (errno == EMFILE || errno == ENFILE) fail_open(path_, errno);
    why_not_direct_ = fmt::format("the file system refuses O_DIRECT: {}", std::strerror(errno));
    return;
  }
  struct stat direct {
  }, buffered{};
  if (fstat(direct_fd_, &direct) != 0 || fstat(buffered_fd_, &buffered) != 0) {
    base::fail(ErrorCode::io, "cannot examine {}: {}", path_, std::strerror(errno));
  }
  if (direct.st_dev != buffered.st_dev || direct.st_ino != buffered.st_ino) {
    base::fail(ErrorCode::io, "{} was replaced while it was being opened (try again)", path_);
  }
  std::uint32_t alignment = k_default_alignment_bytes;
  const DirectSupport support = query_alignment(direct_fd_, &alignment);
  if (support == DirectSupport::refused) {
    why_not_direct_ = "the kernel reports no direct reads for this file (statx)";
  } else if (probe_direct(alignment) ||
             (alignment < k_default_alignment_bytes && probe_direct(k_default_alignment_bytes))) {
    return;
  }
  close(direct_fd_);
  direct_fd_ = -1;
#else
  why_not_direct_ = "this system has no O_DIRECT";
#endif
}

// Some file systems accept the flag and refuse the reads; only a read tells.
bool File::probe_direct(std::uint32_t alignment) {
  const AlignedBuffer buffer = make_aligned_buffer(alignment, alignment);
  const std::int64_t n = read_once(direct_fd_, buffer.get(), alignment, 0);
  const auto expected = static_cast<std::int64_t>(std::min<std::uint64_t>(alignment, size_bytes_));
  if (n == expected) {
    alignment_bytes_ = alignment;
    why_not_direct_.clear();
    probe_bytes_ += alignment;
    return true;
  }
  why_not_direct_ = n < 0 ? fmt::format("a direct read of {} bytes fails: {}", alignment,
                                        std::strerror(static_cast<int>(-n)))
                          : fmt::format("a direct read of {} bytes returned {}", alignment, n);
  return false;
}

void File::widen_alignment(std::uint32_t alignment_bytes) {
  SLUICE_CHECK(base::is_power_of_two(alignment_bytes) && alignment_bytes <= k_max_alignment_bytes);
  alignment_bytes_ = std::max(alignment_bytes_, alignment_bytes);
}

std::optional<FileRange> File::next_hole([[maybe_unused]] std::uint64_t from) const noexcept {
#if defined(SEEK_HOLE) && defined(SEEK_DATA)
  if (from >= size_bytes_) return std::nullopt;
  const off_t begin = lseek(buffered_fd_, static_cast<off_t>(from), SEEK_HOLE);
  // The end of the file counts as a hole.
  if (begin < 0 || static_cast<std::uint64_t>(begin) >= size_bytes_) return std::nullopt;
  const off_t end = lseek(buffered_fd_, begin, SEEK_DATA);
  if (end < 0 && errno != ENXIO) return std::nullopt;
  if (end >= 0 && end <= begin) return std::nullopt;
  return FileRange{static_cast<std::uint64_t>(begin),
                   end < 0 ? size_bytes_ : static_cast<std::uint64_t>(end)};
#else
  return std::nullopt;
#endif
}

void File::read(std::uint64_t offset, std::byte* out, std::uint64_t bytes,
                std::uint64_t* storage_bytes) const {
  const auto end = base::checked_add(offset, bytes);
  if (!end || *end > size_bytes_) {
    base::fail(ErrorCode::io, "cannot read {} bytes at offset {} of {}: it has {} bytes", bytes, offset,
               path_, size_bytes_);
  }
  if (bytes == 0) return;
  if (is_direct()) {
    read_direct(offset, out, bytes, storage_bytes);
  } else {
    read_buffered(offset, out, bytes, storage_bytes);
  }
}

void File::read_direct(std::uint64_t offset, std::byte* out, std::uint64_t bytes,
                       std::uint64_t* storage_bytes) const {
  const std::uint64_t alignment = alignment_bytes_;
  const std::uint64_t end = offset + bytes;
  AlignedBuffer bounce;
  std::uint64_t bounce_bytes = 0;
  while (offset < end) {
    const std::uint64_t begin = base::align_down(offset, alignment);
    const std::uint64_t whole = base::align_down(end - offset, alignment);
    // Whole blocks go straight to an aligned destination; edges and unaligned destinations through the bounce
    // buffer.
    const bool straight =
        begin == offset && whole != 0 && reinterpret_cast<std::uintptr_t>(out) % alignment == 0;
    std::byte* target = out;
    std::uint64_t length = std::min(whole, k_max_read_bytes);
    if (!straight) {
      length = std::min(base::align_up(end - begin, alignment), k_bounce_bytes);
      if (bounce_bytes < length) {
        bounce = make_aligned_buffer(length, alignment_bytes_);
        bounce_bytes = length;
      }
      target = bounce.get();
    }
    const std::int64_t n = read_once(direct_fd_, target, length, begin);
    if (n < 0) fail_read(path_, offset, bytes, n);
    const auto got = static_cast<std::uint64_t>(n);
    // The block that the file ends in is fetched whole, though only its beginning is delivered.
    if (storage_bytes != nullptr) *storage_bytes += base::align_up(got, alignment);
    // After a short read the next one must start at a block again, unless all that is wanted has arrived.
    std::uint64_t valid_end = begin + got;
    if (valid_end < end) valid_end = base::align_down(valid_end, alignment);
    if (valid_end <= offset) fail_truncated(path_, size_bytes_, begin + got);
    const std::uint64_t useful = std::min(valid_end, end) - offset;
    if (!straight) std::memcpy(out, target + (offset - begin), useful);
    offset += useful;
    out += useful;
  }
}

void File::read_buffered(std::uint64_t offset, std::byte* out, std::uint64_t bytes,
                         std::uint64_t* storage_bytes) const {
  const std::uint64_t end = offset + bytes;
  while (offset < end) {
    // Chunks end where large pages of the cache do: the kernel keeps a page that is dropped only in part.
    const std::uint64_t chunk_end = base::align_down(offset + k_max_read_bytes, k_cache_page_bytes);
    const std::int64_t n = read_once(buffered_fd_, out, std::min(end, chunk_end) - offset, offset);
    if (n < 0) fail_read(path_, offset, end - offset, n);
    if (n == 0) fail_truncated(path_, size_bytes_, offset);
    if (storage_bytes != nullptr) *storage_bytes += static_cast<std::uint64_t>(n);
    if (bytes >= k_drop_cache_bytes) drop_page_cache(buffered_fd_, offset, static_cast<std::uint64_t>(n));
    offset += static_cast<std::uint64_t>(n);
    out += n;
  }
}

namespace {

class FileByteSource final : public gguf::ByteSource {
 public:
  FileByteSource(const File& file, std::uint64_t* storage_bytes, std::unique_ptr<File> owned = nullptr)
      : owned_(std::move(owned)),
        file_(file),
        storage_bytes_(storage_bytes),
        window_(make_aligned_buffer(k_window_bytes, file_.alignment_bytes())) {
    if (storage_bytes_ != nullptr) *storage_bytes_ += file_.probe_bytes();
  }

  const std::string& name() const override { return file_.path(); }
  std::uint64_t size() const override { return file_.size_bytes(); }

  void read(std::uint64_t offset, std::span<std::byte> out) override {
    SLUICE_CHECK(offset <= size() && out.size() <= size() - offset);
    while (!out.empty()) {
      if (offset < window_begin_ || offset >= window_end_) {
        if (out.size() >= k_window_bytes) {
          file_.read(offset, out.data(), out.size(), storage_bytes_);
          return;
        }
        fill_window(offset);
      }
      const std::uint64_t n = std::min<std::uint64_t>(out.size(), window_end_ - offset);
      std::memcpy(out.data(), window_.get() + (offset - window_begin_), n);
      offset += n;
      out = out.subspan(n);
    }
  }

 private:
  void fill_window(std::uint64_t offset) {
    const std::uint64_t begin =
        base::align_down(offset, std::min<std::uint64_t>(file_.alignment_bytes(), k_window_bytes));
    const std::uint64_t end = std::min(begin + k_window_bytes, size());
    window_begin_ = window_end_ = 0;  // Whatever the buffer holds when the read fails, nobody may use it.
    file_.read(begin, window_.get(), end - begin, storage_bytes_);
    window_begin_ = begin;
    window_end_ = end;
  }

  std::unique_ptr<File> owned_;  ///< Null when it is borrowed.
  const File& file_;
  std::uint64_t* storage_bytes_;
  AlignedBuffer window_;
  std::uint64_t window_begin_ = 0;
  std::uint64_t window_end_ = 0;
};

}  // namespace

std::unique_ptr<gguf::ByteSource> make_byte_source(const File& file, std::uint64_t* storage_bytes) {
  return std::make_unique<FileByteSource>(file, storage_bytes);
}

std::unique_ptr<gguf::ByteSource> make_byte_source(std::unique_ptr<File> file, std::uint64_t* storage_bytes) {
  SLUICE_CHECK(file != nullptr);
  const File& borrowed = *file;
  return std::make_unique<FileByteSource>(borrowed, storage_bytes, std::move(file));
}

}  // namespace sluice::storage
