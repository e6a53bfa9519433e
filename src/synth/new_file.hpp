#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.hpp"

namespace sluice::synth {

/// A file that gets its name only when it is whole: until commit() it is PATH.partial, which the destructor
/// removes. Written once from the beginning to the end, in large writes, with a bounded part of it in the
/// page cache.
class NewFile {
 public:
  /// Reserves `file_bytes` on the drive. Throws Error(invalid_argument) when PATH exists and may not be
  /// replaced, or is no regular file; Error(io) when the folder is not writable or has too little space, when
  /// the process may not write such a file, when another process writes PATH, and when PATH.partial exists
  /// (unless PATH may be replaced).
  NewFile(std::filesystem::path path, std::uint64_t file_bytes, bool may_replace);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Throws Error(io) naming the file and the offset.
  void append(std::span<const std::byte> bytes);
  std::uint64_t n_appended() const noexcept { return n_written_ + buffer_.size(); }
  /// Brings everything to the drive, drops it from the page cache and gives the file its name. Requires that
  /// exactly file_bytes were appended.
  void commit();

 private:
  void check_room() const;
  void open();
  void flush();
  void push_to_drive();
  const std::filesystem::path& partial() const noexcept { return file_.partial(); }

  std::filesystem::path path_;
  std::uint64_t file_bytes_;
  bool may_replace_;
  base::AtomicFile file_;
  std::uint64_t n_written_ = 0;
  std::uint64_t n_started_ = 0;  ///< Writing back of these bytes was started.
  std::uint64_t n_dropped_ = 0;  ///< These are on the drive and out of the page cache.
  std::vector<std::byte> buffer_;
};

}  // namespace sluice::synth
