#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice::base {

/// What is wrong with a JSON text, and where. Callers add the file and the line.
struct JsonError : std::runtime_error {
  JsonError(const std::string& what, std::size_t where) : std::runtime_error(what), offset(where) {}
  std::size_t offset;  ///< Bytes from the start of the text.
};

/// Reads a JSON text (RFC 8259) of known shape front to back without building a tree, so that a hostile text
/// costs no more memory than what its reader keeps. Borrows the text. All functions throw JsonError.
///
/// ```
/// reader.begin_object();
/// while (reader.next_key(key)) key == "n" ? n = reader.number(100) : reader.skip_value();
/// reader.end();
/// ```
class JsonReader {
 public:
  static constexpr std::size_t k_max_depth = 64;  ///< Of nested arrays and objects.

  explicit JsonReader(std::string_view text) noexcept : text_(text) {}

  void begin_object() { open('{', "an object"); }
  /// Moves to the next member and reads its name, of at most `max_bytes` bytes; false at the end of the
  /// object.
  bool next_key(std::string& key, std::size_t max_bytes = 256);
  void begin_array() { open('[', "an array"); }
  /// Moves to the next element; false at the end of the array.
  bool next_element() { return next(']'); }

  /// An integer from 0 to `max`.
  std::uint64_t number(std::uint64_t max);
  /// At most `max_bytes` bytes of UTF-8.
  std::string string(std::size_t max_bytes);
  /// Any value, checked and dropped.
  void skip_value();
  /// Requires that nothing but blanks is left.
  void end();

 private:
  [[noreturn]] void fail(const std::string& what) const { throw JsonError(what, at_); }
  void skip_blanks() noexcept;
  char peek() noexcept;  ///< The next character that is no blank; 0 at the end.
  void open(char bracket, const char* what);
  bool next(char bracket);
  void expect_word(std::string_view word);
  void skip_number();
  std::uint32_t hex4();
  void append_escape(std::string& out);

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
  std::uint64_t has_members_ =
      0;  ///< One bit per level: a member was read, so a comma comes before the next.
};

}  // namespace sluice::base
