#include "gguf/value_reader.hpp"

#include <algorithm>
#include <span>

#include "base/check.hpp"
#include "gguf/limits.hpp"

namespace sluice::gguf {
namespace {

constexpr const char* k_what_element = "an array element";
constexpr const char* k_what_value = "the value";
constexpr std::uint64_t k_length_bytes = 8;         ///< The length before a string.
constexpr std::uint64_t k_min_array_bytes = 4 + 8;  ///< Element type and count of an empty array.
constexpr std::uint64_t k_usual_token_bytes = 8;    ///< First guess of the text of a vocabulary.
// A count is trusted for this many elements before any of them was read; more make the array grow as they
// arrive.
constexpr std::uint64_t k_trusted_strings = 262'144;
constexpr std::uint64_t k_trusted_nested = 256;

}  // namespace

ValueType ValueReader::read_type() {
  const std::uint64_t offset = cursor_.position();
  const auto type_id = cursor_.number<std::uint32_t>("the value type");
  if (type_id > static_cast<std::uint32_t>(ValueType::f64)) {
    cursor_.fail_at(offset, "{} is no value type (expected 0 to 12): the file is damaged", type_id);
  }
  return static_cast<ValueType>(type_id);
}

Value ValueReader::read() {
  const ValueType type = read_type();
  if (type == ValueType::array) return {type, read_array(1)};
  return read_scalar(type);
}

Value ValueReader::read_scalar(ValueType type) {
  const auto as_unsigned = [type](auto number) { return Value{type, std::uint64_t{number}}; };
  const auto as_signed = [type](auto number) { return Value{type, std::int64_t{number}}; };
  switch (type) {
    case ValueType::u8:
      return as_unsigned(cursor_.number<std::uint8_t>(k_what_value));
    case ValueType::u16:
      return as_unsigned(cursor_.number<std::uint16_t>(k_what_value));
    case ValueType::u32:
      return as_unsigned(cursor_.number<std::uint32_t>(k_what_value));
    case ValueType::u64:
      return as_unsigned(cursor_.number<std::uint64_t>(k_what_value));
    case ValueType::i8:
      return as_signed(cursor_.number<std::int8_t>(k_what_value));
    case ValueType::i16:
      return as_signed(cursor_.number<std::int16_t>(k_what_value));
    case ValueType::i32:
      return as_signed(cursor_.number<std::int32_t>(k_what_value));
    case ValueType::i64:
      return as_signed(cursor_.number<std::int64_t>(k_what_value));
    case ValueType::f32:
      return {type, double{cursor_.number<float>(k_what_value)}};
    case ValueType::f64:
      return {type, cursor_.number<double>(k_what_value)};
    case ValueType::boolean:
      return {type, read_flags(1).front() != 0};
    case ValueType::string:
      return {type, cursor_.string(k_max_string_bytes, "the string")};
    case ValueType::array:
      break;
  }
  SLUICE_CHECK(!"read_type lets only known types through, and arrays go to read_array");
  return {};
}

Array ValueReader::read_array(std::uint32_t depth) {
  Array array;
  array.element_type = read_type();
  const std::uint64_t count_offset = cursor_.position();
  const auto count = cursor_.number<std::uint64_t>("the array length");
  if (count > k_max_array_elements) {
    cursor_.fail_at(count_offset,
                    "the array claims {} elements, more than the limit of {}: the file is damaged", count,
                    k_max_array_elements);
  }
  switch (array.element_type) {
    case ValueType::u8:
    case ValueType::i8:
      array.data = read_numbers<std::uint8_t, std::uint8_t>(count);
      break;
    case ValueType::boolean:
      array.data = read_flags(count);
      break;
    case ValueType::u16:
      array.data = read_numbers<std::uint16_t, std::uint32_t>(count);
      break;
    case ValueType::i16:
      array.data = read_numbers<std::int16_t, std::int32_t>(count);
      break;
    case ValueType::u32:
      array.data = read_numbers<std::uint32_t, std::uint32_t>(count);
      break;
    case ValueType::i32:
      array.data = read_numbers<std::int32_t, std::int32_t>(count);
      break;
    case ValueType::u64:
      array.data = read_numbers<std::uint64_t, std::uint64_t>(count);
      break;
    case ValueType::i64:
      array.data = read_numbers<std::int64_t, std::int64_t>(count);
      break;
    case ValueType::f32:
      array.data = read_numbers<float, float>(count);
      break;
    case ValueType::f64:
      array.data = read_numbers<double, double>(count);
      break;
    case ValueType::string:
      array.data = read_strings(count);
      break;
    case ValueType::array:
      array.data = read_nested(count, count_offset, depth);
      break;
  }
  return array;
}

StringArray ValueReader::read_strings(std::uint64_t count) {
  cursor_.require(count * k_length_bytes, "the array");
  StringArray strings;
  const std::uint64_t max_text_bytes = cursor_.remaining() - count * k_length_bytes;
  const std::uint64_t n_trusted = std::min(count, k_trusted_strings);
  strings.reserve(n_trusted, std::min(max_text_bytes, n_trusted * k_usual_token_bytes));
  for (std::uint64_t index = 0; index < count; ++index) {
    const auto n_bytes = static_cast<std::size_t>(cursor_.string_length(k_max_string_bytes, k_what_element));
    if (n_bytes <= Cursor::k_view_bytes) {
      strings.push_back(cursor_.view(n_bytes, k_what_element));
    } else {
      std::string text(n_bytes, '\0');
      cursor_.read(std::as_writable_bytes(std::span(text)), k_what_element);
      strings.push_back(text);
    }
  }
  strings.shrink_to_fit();
  return strings;
}

std::vector<Value> ValueReader::read_nested(std::uint64_t count, std::uint64_t count_offset,
                                            std::uint32_t depth) {
  if (depth >= k_max_array_depth) {
    cursor_.fail_at(count_offset, "arrays are nested deeper than the limit of {}: the file is damaged",
                    k_max_array_depth);
  }
  n_nested_ += count;  // The count is at most k_max_array_elements, and the sum is checked each time.
  if (n_nested_ > k_max_nested_arrays) {
    cursor_.fail_at(count_offset,
                    "the metadata nests {} arrays, more than the limit of {}: the file is damaged", n_nested_,
                    k_max_nested_arrays);
  }
  cursor_.require(count * k_min_array_bytes, "the array");
  std::vector<Value> values;
  values.reserve(std::min(count, k_trusted_nested));
  // The depth check bounds this recursion.
  for (std::uint64_t index = 0; index < count; ++index)
    values.push_back({ValueType::array, read_array(depth + 1)});
  return values;
}

std::vector<std::uint8_t> ValueReader::read_flags(std::uint64_t count) {
  const std::uint64_t offset = cursor_.position();
  std::vector<std::uint8_t> flags = read_numbers<std::uint8_t, std::uint8_t>(count);
  const auto bad = std::find_if(flags.begin(), flags.end(), [](std::uint8_t flag) { return flag > 1; });
  if (bad != flags.end()) {
    cursor_.fail_at(offset + static_cast<std::uint64_t>(bad - flags.begin()),
                    "a bool must be 0 or 1, but it is {}: the file is damaged", *bad);
  }
  return flags;
}

template <typename Stored, typename Kept>
std::vector<Kept> ValueReader::read_numbers(std::uint64_t count) {
  cursor_.require(count * sizeof(Stored), "the array");
  std::vector<Kept> numbers(count);
  if constexpr (std::is_same_v<Stored, Kept>) {
    cursor_.read(std::as_writable_bytes(std::span(numbers)), "the array");
  } else {
    for (Kept& number : numbers) number = cursor_.number<Stored>(k_what_element);
  }
  return numbers;
}

}  // namespace sluice::gguf
