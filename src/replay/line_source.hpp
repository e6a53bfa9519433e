#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::replay {

/// The lines of a text file, one at a time, in bounded memory.
class LineSource {
 public:
  static constexpr std::size_t k_max_line_bytes = std::size_t{4} << 20;

  /// Throws Error(io).
  explicit LineSource(const std::string& path);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  /// The next line without its end ("\n" or "\r\n"), valid until the next call; nothing at the end of the
  /// file. Throws Error(io), or Error(invalid_file) for a line of more than k_max_line_bytes.
  std::optional<std::string_view> next();
  /// Of the line that next() gave, from 1.
  std::uint64_t line() const noexcept { return line_; }
  const std::string& path() const noexcept { return path_; }

 private:
  bool fill();

  std::string path_;
  int fd_ = -1;
  std::string buffer_;
  std::size_t begin_ = 0;  ///< Of what next() has not given out.
  bool ended_ = false;
  std::uint64_t line_ = 0;
};

}  // namespace sluice::replay
