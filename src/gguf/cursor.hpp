#pragma once

#include <fmt/core.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "gguf/byte_source.hpp"

namespace sluice::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as the host stores them");

/// Reads a header front to back through one small buffer. Every read is checked against the size of the file
/// and against k_max_header_bytes before anything is allocated for it; a failure names the file and the byte
/// offset.
class Cursor {
 public:
  explicit Cursor(ByteSource& source);

  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t remaining() const noexcept { return size_ - position_; }
  std::uint64_t file_bytes() const noexcept { return size_; }

  /// What is being read, for messages: "metadata entry 3 'general.name'". `name` must outlive the next call.
  void set_context(const char* kind, std::uint64_t index, std::string_view name = {}) noexcept;

  /// Fails unless `n_bytes` more bytes are there, saying that the file is cut inside `what`.
  void require(std::uint64_t n_bytes, const char* what) const;

  template <typename Number>
  Number number(const char* what) {
    static_assert(std::is_arithmetic_v<Number>);
    Number value;
    std::memcpy(&value, view(sizeof(Number), what).data(), sizeof(Number));
    return value;
  }

  /// The next bytes, valid until the next call. Requires n_bytes <= k_view_bytes.
  static constexpr std::size_t k_view_bytes = 128 * 1024;
  std::string_view view(std::size_t n_bytes, const char* what);

  /// Fills `out` past the buffer, so that a large array is copied once.
  void read(std::span<std::byte> out, const char* what);

  /// A length and that many bytes. Requires max_bytes to be a named limit.
  std::string string(std::uint64_t max_bytes, const char* what);
  std::uint64_t string_length(std::uint64_t max_bytes, const char* what);

  template <typename... Args>
  [[noreturn]] void fail_at(std::uint64_t offset, fmt::format_string<Args...> format, Args&&... args) const {
    fail_text(offset, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void fail_text(std::uint64_t offset, std::string_view text) const;

  ByteSource& source_;
  std::uint64_t size_;
  std::uint64_t position_ = 0;
  std::vector<std::byte> buffer_;
  std::uint64_t buffer_offset_ = 0;  ///< Where in the file the buffer starts.
  const char* kind_ = nullptr;
  std::uint64_t index_ = 0;
  std::string_view name_;
};

}  // namespace sluice::gguf
