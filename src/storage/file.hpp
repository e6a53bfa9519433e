#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gguf/byte_source.hpp"

namespace sluice::storage {

/// Bytes [begin, end) of a file.
struct FileRange {
  std::uint64_t begin = 0, end = 0;
};

/// An open file, read only. Owns one buffered and, where the file system allows it, one O_DIRECT descriptor.
/// Immutable once it is read from; reads through the descriptors are thread-safe.
class File {
 public:
  /// Throws Error(io) naming the path and the cause (missing, permission, a directory, ...). `want_direct`
  /// asks for O_DIRECT; when the file system refuses, direct_fd() is -1 and why_not_direct() says why.
  static std::unique_ptr<File> open(const std::string& path, bool want_direct);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  int buffered_fd() const noexcept { return buffered_fd_; }
  int direct_fd() const noexcept { return direct_fd_; }
  bool is_direct() const noexcept { return direct_fd_ >= 0; }
  const std::string& why_not_direct() const noexcept { return why_not_direct_; }
  /// Offsets, lengths and addresses of direct reads must be multiples of this (from statx where the kernel
  /// tells, else 4096). A power of two between 512 and 1 MiB.
  std::uint32_t alignment_bytes() const noexcept { return alignment_bytes_; }
  /// Makes alignment_bytes() at least this (a power of two up to 1 MiB), so that two copies of a file have
  /// the same windows. Before the first read.
  void widen_alignment(std::uint32_t alignment_bytes);
  /// Equal for files of one file system (its device number): they share a drive.
  std::uint64_t device() const noexcept { return device_; }
  /// Bytes that open() itself read, to find out whether direct reads work; 0 without O_DIRECT.
  std::uint64_t probe_bytes() const noexcept { return probe_bytes_; }

  /// The first hole at or after `from`: the file system keeps no data there, and it reads as zeros. Nothing
  /// when there is none, or where the file system does not tell. Reads nothing.
  std::optional<FileRange> next_hole(std::uint64_t from) const noexcept;

  /// Fills the buffer, retrying short reads and EINTR; through the O_DIRECT descriptor (with an aligned
  /// bounce buffer of at most 1 MiB) when there is one, so that loading leaves nothing in the page cache.
  /// Adds the bytes asked of the system to *storage_bytes when given. Throws Error(io) naming path and
  /// offset.
  void read(std::uint64_t offset, std::byte* out, std::uint64_t bytes,
            std::uint64_t* storage_bytes = nullptr) const;

 private:
  File() = default;
  void open_direct();
  bool probe_direct(std::uint32_t alignment);
  void read_direct(std::uint64_t offset, std::byte* out, std::uint64_t bytes,
                   std::uint64_t* storage_bytes) const;
  void read_buffered(std::uint64_t offset, std::byte* out, std::uint64_t bytes,
                     std::uint64_t* storage_bytes) const;

  std::string path_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t device_ = 0;
  int buffered_fd_ = -1;
  int direct_fd_ = -1;
  std::uint32_t alignment_bytes_ = 4096;
  std::uint64_t probe_bytes_ = 0;
  std::string why_not_direct_;
};

/// The file as a source for the GGUF parser. Small reads are served from a window buffer of 64 KiB; counts
/// into *storage_bytes like File::read, the probe of open() included. Borrows the file.
std::unique_ptr<gguf::ByteSource> make_byte_source(const File& file, std::uint64_t* storage_bytes = nullptr);
/// The same, and owns the file.
std::unique_ptr<gguf::ByteSource> make_byte_source(std::unique_ptr<File> file,
                                                   std::uint64_t* storage_bytes = nullptr);

}  // namespace sluice::storage
