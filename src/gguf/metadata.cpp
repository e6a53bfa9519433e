#include "gguf/metadata.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "gguf/text.hpp"

namespace sluice::gguf {
namespace {

constexpr std::uint64_t k_int64_max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

std::string type_text(const Value& value) {
  const auto* array = std::get_if<Array>(&value.data);
  if (array == nullptr) return value_type_name(value.type);
  return fmt::format("array of {} {}", array->size(), value_type_name(array->element_type));
}

/// The integer of a value, or nothing when it is no integer. `negative` tells how to read the bits.
struct Integer {
  std::uint64_t bits = 0;
  bool negative = false;
};

std::optional<Integer> as_integer(const Value& value) noexcept {
  if (const auto* number = std::get_if<std::uint64_t>(&value.data)) return Integer{*number, false};
  if (const auto* number = std::get_if<std::int64_t>(&value.data)) {
    return Integer{static_cast<std::uint64_t>(*number), *number < 0};
  }
  return std::nullopt;
}

/// Element of an integer array; nothing when the array holds no integers. Requires index < array.size().
std::optional<Integer> integer_at(const Array& array, std::size_t index) noexcept {
  if (array.element_type == ValueType::boolean) return std::nullopt;
  return std::visit(
      [&array, index](const auto& elements) -> std::optional<Integer> {
        using Element = std::decay_t<decltype(elements[index])>;
        if constexpr (std::is_integral_v<Element>) {
          if constexpr (std::is_same_v<Element, std::uint8_t>) {
            if (array.element_type == ValueType::i8) {
              const auto number = static_cast<std::int8_t>(elements[index]);
              return Integer{static_cast<std::uint64_t>(static_cast<std::int64_t>(number)), number < 0};
            }
          }
          return Integer{static_cast<std::uint64_t>(elements[index]), std::cmp_less(elements[index], 0)};
        } else {
          return std::nullopt;
        }
      },
      array.data);
}

std::string describe_array(const Array& array, std::size_t max_chars);

std::string describe_scalar(const Value& value, std::size_t max_chars) {
  if (const auto* number = std::get_if<std::uint64_t>(&value.data)) return fmt::format("{}", *number);
  if (const auto* number = std::get_if<std::int64_t>(&value.data)) return fmt::format("{}", *number);
  if (const auto* flag = std::get_if<bool>(&value.data)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<double>(&value.data)) {
    // A widened f32 printed as a double would show digits that the file never had.
    return value.type == ValueType::f32 ? fmt::format("{}", static_cast<float>(*number))
                                        : fmt::format("{}", *number);
  }
  if (const auto* text = std::get_if<std::string>(&value.data)) {
    return fmt::format("\"{}\"", printable(*text, max_chars > 2 ? max_chars - 2 : 0));
  }
  return describe_array(std::get<Array>(value.data), max_chars);
}

std::string describe_element(const Array& array, std::size_t index, std::size_t max_chars) {
  if (const auto* strings = std::get_if<StringArray>(&array.data)) {
    return fmt::format("\"{}\"", printable((*strings)[index], max_chars > 2 ? max_chars - 2 : 0));
  }
  if (const auto* values = std::get_if<std::vector<Value>>(&array.data)) {
    return describe_scalar((*values)[index], max_chars);
  }
  if (const auto* numbers = std::get_if<std::vector<float>>(&array.data)) {
    return fmt::format("{}", (*numbers)[index]);
  }
  if (const auto* numbers = std::get_if<std::vector<double>>(&array.data)) {
    return fmt::format("{}", (*numbers)[index]);
  }
  if (array.element_type == ValueType::boolean) {
    const auto* flags = std::get_if<std::vector<std::uint8_t>>(&array.data);
    return flags != nullptr && (*flags)[index] != 0 ? "true" : "false";
  }
  const std::optional<Integer> number = integer_at(array, index);
  if (!number) return "?";
  return number->negative ? fmt::format("{}", static_cast<std::int64_t>(number->bits))
                          : fmt::format("{}", number->bits);
}

std::string describe_array(const Array& array, std::size_t max_chars) {
  std::string result = fmt::format("{}[{}] {{", value_type_name(array.element_type), array.size());
  constexpr std::string_view k_cut = "...}";
  for (std::size_t index = 0; index < array.size(); ++index) {
    const bool is_last = index + 1 == array.size();
    const std::size_t left = max_chars - std::min(max_chars, result.size() + k_cut.size());
    std::string element = describe_element(array, index, left);
    if (!is_last) element += ", ";
    if (element.size() > left) return result.append(k_cut);
    result += element;
  }
  return result + "}";
}

}  // namespace

const char* value_type_name(ValueType type) noexcept {
  switch (type) {
    case ValueType::u8:
      return "u8";
    case ValueType::i8:
      return "i8";
    case ValueType::u16:
      return "u16";
    case ValueType::i16:
      return "i16";
    case ValueType::u32:
      return "u32";
    case ValueType::i32:
      return "i32";
    case ValueType::f32:
      return "f32";
    case ValueType::boolean:
      return "bool";
    case ValueType::string:
      return "string";
    case ValueType::array:
      return "array";
    case ValueType::u64:
      return "u64";
    case ValueType::i64:
      return "i64";
    case ValueType::f64:
      return "f64";
  }
  return "unknown";
}

bool is_integer_type(ValueType type) noexcept {
  return value_type_bytes(type) != 0 && type != ValueType::f32 && type != ValueType::f64 &&
         type != ValueType::boolean;
}

std::uint32_t value_type_bytes(ValueType type) noexcept {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
      return 8;
    case ValueType::string:
    case ValueType::array:
      return 0;
  }
  return 0;
}

std::size_t Array::size() const noexcept {
  return std::visit([](const auto& elements) { return elements.size(); }, data);
}

std::size_t Metadata::lower_bound(std::string_view key) const noexcept {
  const auto it = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                   [this](std::uint32_t index, std::string_view wanted) {
                                     return std::string_view(entries_[index].key) < wanted;
                                   });
  return static_cast<std::size_t>(it - by_key_.begin());
}

const Value* Metadata::find(std::string_view key) const noexcept {
  const std::size_t rank = lower_bound(key);
  if (rank == by_key_.size() || entries_[by_key_[rank]].key != key) return nullptr;
  return &entries_[by_key_[rank]].value;
}

bool Metadata::add(std::string key, Value value) {
  const std::size_t rank = lower_bound(key);
  if (rank != by_key_.size() && entries_[by_key_[rank]].key == key) return false;
  by_key_.insert(by_key_.begin() + static_cast<std::ptrdiff_t>(rank),
                 static_cast<std::uint32_t>(entries_.size()));
  entries_.push_back({std::move(key), std::move(value)});
  return true;
}

void Metadata::set(std::string key, Value value) {
  const std::size_t rank = lower_bound(key);
  if (rank != by_key_.size() && entries_[by_key_[rank]].key == key) {
    entries_[by_key_[rank]].value = std::move(value);
  } else {
    add(std::move(key), std::move(value));
  }
}

void Metadata::drop(std::string_view key) {
  const std::size_t rank = lower_bound(key);
  if (rank == by_key_.size() || entries_[by_key_[rank]].key != key) return;
  entries_[by_key_[rank]].value = Value{ValueType::string, std::string()};
}

std::string Metadata::where(std::string_view key) const {
  return fmt::format("{}: metadata key '{}'", source_name.empty() ? "model" : source_name, printable(key));
}

void Metadata::fail_type(std::string_view key, const char* expected, const Value& actual) const {
  base::fail(ErrorCode::invalid_file, "{} must be {}, but it is {} ({})", where(key), expected,
             type_text(actual), describe_value(actual, 40));
}

const Value& Metadata::require(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    base::fail(ErrorCode::invalid_file, "{} is missing, and this model cannot be used without it",
               where(key));
  }
  return *value;
}

std::optional<std::uint64_t> Metadata::get_uint(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<Integer> number = as_integer(*value);
  if (!number || number->negative) fail_type(key, "an integer of at least 0", *value);
  return number->bits;
}

std::optional<std::int64_t> Metadata::get_int(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<Integer> number = as_integer(*value);
  if (!number || (!number->negative && number->bits > k_int64_max)) {
    fail_type(key, "an integer that fits 64 signed bits", *value);
  }
  return static_cast<std::int64_t>(number->bits);
}

std::optional<double> Metadata::get_float(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* number = std::get_if<double>(&value->data);
  if (number == nullptr) fail_type(key, "a float (f32 or f64)", *value);
  return *number;
}

std::optional<bool> Metadata::get_bool(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* flag = std::get_if<bool>(&value->data);
  if (flag == nullptr) fail_type(key, "a bool", *value);
  return *flag;
}

std::optional<std::string_view> Metadata::get_string(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string>(&value->data);
  if (text == nullptr) fail_type(key, "a string", *value);
  return std::string_view(*text);
}

const StringArray* Metadata::get_strings(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<Array>(&value->data);
  const auto* strings = array == nullptr ? nullptr : std::get_if<StringArray>(&array->data);
  if (strings == nullptr) fail_type(key, "an array of strings", *value);
  return strings;
}

std::optional<std::vector<std::int64_t>> Metadata::get_ints(std::string_view key) const {
  constexpr const char* k_expected = "an array of integers that fit 64 signed bits";
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<Array>(&value->data);
  if (array == nullptr) fail_type(key, k_expected, *value);
  std::vector<std::int64_t> result;
  if (array->element_type == ValueType::boolean) {
    const auto* flags = std::get_if<std::vector<std::uint8_t>>(&array->data);
    if (flags == nullptr) fail_type(key, k_expected, *value);
    result.assign(flags->begin(), flags->end());
    return result;
  }
  // Integers of no elements are told apart from floats of no elements by their type.
  if (!is_integer_type(array->element_type)) fail_type(key, k_expected, *value);
  result.reserve(array->size());
  for (std::size_t index = 0; index < array->size(); ++index) {
    const std::optional<Integer> number = integer_at(*array, index);
    if (!number || (!number->negative && number->bits > k_int64_max)) fail_type(key, k_expected, *value);
    result.push_back(static_cast<std::int64_t>(number->bits));
  }
  return result;
}

std::optional<std::vector<float>> Metadata::get_floats(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<Array>(&value->data);
  if (array != nullptr) {
    if (const auto* numbers = std::get_if<std::vector<float>>(&array->data)) return *numbers;
    if (const auto* numbers = std::get_if<std::vector<double>>(&array->data)) {
      std::vector<float> result;
      result.reserve(numbers->size());
      for (const double number : *numbers) {
        // Casting a finite double beyond the range of float would be undefined behaviour.
        if (std::isfinite(number) &&
            std::fabs(number) > static_cast<double>(std::numeric_limits<float>::max())) {
          fail_type(key, "an array of floats that fit 32 bits", *value);
        }
        result.push_back(static_cast<float>(number));
      }
      return result;
    }
  }
  fail_type(key, "an array of floats (f32 or f64)", *value);
}

std::optional<std::uint64_t> Metadata::get_uint_at(std::string_view key, std::size_t index) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<Array>(&value->data);
  if (array == nullptr) return get_uint(key);
  if (index >= array->size()) {
    base::fail(ErrorCode::invalid_file, "{} has {} elements, but element {} is needed (one per layer)",
               where(key), array->size(), index);
  }
  const std::optional<Integer> number = integer_at(*array, index);
  if (!number || number->negative) fail_type(key, "an array of integers of at least 0", *value);
  return number->bits;
}

std::uint64_t Metadata::require_uint(std::string_view key) const {
  require(key);
  return *get_uint(key);
}

double Metadata::require_float(std::string_view key) const {
  require(key);
  return *get_float(key);
}

std::string_view Metadata::require_string(std::string_view key) const {
  require(key);
  return *get_string(key);
}

std::string describe_value(const Value& value, std::size_t max_chars) {
  return describe_scalar(value, max_chars);
}

}  // namespace sluice::gguf
