#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::gguf {

/// Type ids of metadata values in the file format.
enum class ValueType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// "u32", "string", "bool": the spelling of messages. An id that is no type gives "unknown".
const char* value_type_name(ValueType type) noexcept;

/// Bytes of one value in a file; 0 for strings and arrays, whose size varies, and for unknown ids.
std::uint32_t value_type_bytes(ValueType type) noexcept;

/// Whether values of a type are integers; bool is none.
bool is_integer_type(ValueType type) noexcept;

/// Many strings in one allocation: a vocabulary of 150,000 pieces costs its text and four bytes each.
class StringArray {
 public:
  std::size_t size() const noexcept { return ends_.size(); }
  std::string_view operator[](std::size_t index) const noexcept {
    const std::uint32_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(text_).substr(begin, ends_[index] - begin);
  }
  void push_back(std::string_view text) {
    text_.append(text);
    ends_.push_back(static_cast<std::uint32_t>(text_.size()));
  }
  void reserve(std::size_t n_strings, std::size_t n_bytes) {
    ends_.reserve(n_strings);
    text_.reserve(n_bytes);
  }
  void shrink_to_fit() {
    ends_.shrink_to_fit();
    text_.shrink_to_fit();
  }
  std::size_t text_bytes() const noexcept { return text_.size(); }

 private:
  std::string text_;
  std::vector<std::uint32_t> ends_;
};

struct Value;

/// An array keeps its element type; the alternatives hold all integer, float and nested cases without loss.
struct Array {
  ValueType element_type = ValueType::u8;
  std::variant<std::vector<std::uint8_t>, std::vector<std::int32_t>, std::vector<std::uint32_t>,
               std::vector<std::int64_t>, std::vector<std::uint64_t>, std::vector<float>, std::vector<double>,
               StringArray, std::vector<Value>>
      data;  ///< u8, i8 (as raw bytes) and bool: uint8_t; i16, i32: int32_t; u16, u32: uint32_t; nested
             ///< arrays: Value.
  std::size_t size() const noexcept;
};

/// One metadata value. Integers of all widths are widened; `type` says what the file said.
struct Value {
  ValueType type = ValueType::u8;
  std::variant<std::uint64_t, std::int64_t, double, bool, std::string, Array> data;
};

/// The key-value part of a GGUF file, in file order. Keys are unique.
class Metadata {
 public:
  struct Entry {
    std::string key;
    Value value;
  };

  const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// The value of a key, or null.
  const Value* find(std::string_view key) const noexcept;
  bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
  /// Adds a value; false (and no change) when the key exists.
  bool add(std::string key, Value value);
  /// Replaces or adds.
  void set(std::string key, Value value);
  /// Frees one value (a vocabulary that was consumed), keeping the key with an empty string.
  void drop(std::string_view key);

  // Typed access. A missing key gives nothing; a present key of the wrong type or range throws
  // Error(invalid_file) naming the key, the expected and the actual type.
  std::optional<std::uint64_t> get_uint(std::string_view key) const;
  std::optional<std::int64_t> get_int(std::string_view key) const;
  std::optional<double> get_float(std::string_view key) const;  ///< Accepts f32, f64.
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<std::string_view> get_string(std::string_view key) const;
  const StringArray* get_strings(std::string_view key) const;
  /// Any integer array, widened; an array of bool gives 0 and 1. Nothing when the key is missing.
  std::optional<std::vector<std::int64_t>> get_ints(std::string_view key) const;
  /// Any float array. Nothing when the key is missing.
  std::optional<std::vector<float>> get_floats(std::string_view key) const;
  /// A number or an array of numbers with one per layer (as head_count may be): element `index`, or the
  /// scalar.
  std::optional<std::uint64_t> get_uint_at(std::string_view key, std::size_t index) const;

  // Same, but a missing key throws Error(invalid_file) naming it.
  std::uint64_t require_uint(std::string_view key) const;
  double require_float(std::string_view key) const;
  std::string_view require_string(std::string_view key) const;

  /// Where the metadata came from, for messages.
  std::string source_name;

 private:
  std::size_t lower_bound(std::string_view key) const noexcept;
  const Value& require(std::string_view key) const;
  [[noreturn]] void fail_type(std::string_view key, const char* expected, const Value& actual) const;
  std::string where(std::string_view key) const;

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> by_key_;  ///< Indexes of entries_ in order of key: a search costs O(log n).
};

/// A short text of a value for people: strings are quoted and cut, arrays show their length and first
/// elements.
std::string describe_value(const Value& value, std::size_t max_chars = 80);

}  // namespace sluice::gguf
