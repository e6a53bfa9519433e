#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/descriptor.hpp"

namespace sluice::base {

/// A file that gets its name only when it is whole: until commit() it lies beside it as PATH + suffix, which
/// the destructor removes. A lock says whose that file is, so that of two writers the second neither shares,
/// publishes nor removes what the first is writing. Functions return 0 or an errno.
class AtomicFile {
 public:
  AtomicFile() = default;
  ~AtomicFile() { discard(); }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  struct Options {
    const char* suffix = ".partial";
    mode_t mode = 0666;
    /// What a writer that was killed left behind is used and overwritten; otherwise it is EEXIST.
    bool may_take_over = false;
    /// How long to wait for another writer to end; then EBUSY.
    std::uint64_t patience_ns = 0;
  };
  /// To be called once. EINVAL: what lies at PATH + suffix is no regular file.
  int open(const std::filesystem::path& path, const Options& options);
  /// Writes all of it at the end. EFBIG where the process may not write such a file.
  int append(std::string_view bytes);
  /// Gives it its name. An existing file is replaced, or it is EEXIST. ESTALE: somebody removed or replaced
  /// PATH + suffix.
  int commit(bool may_replace);
  /// Gives it up.
  void discard() noexcept;

  bool is_open() const noexcept { return static_cast<bool>(file_); }
  int fd() const noexcept { return file_.get(); }
  /// PATH + suffix.
  const std::filesystem::path& partial() const noexcept { return partial_; }

 private:
  int try_open(const Options& options, bool* is_busy);
  bool owns_name() const noexcept;

  std::filesystem::path path_, partial_;
  Descriptor file_;
  std::uint64_t n_appended_ = 0;
};

/// The most bytes a file of this process may have (RLIMIT_FSIZE), beyond which writing ends the process by a
/// signal; nothing when there is no limit.
std::optional<std::uint64_t> file_bytes_limit() noexcept;

}  // namespace sluice::base
