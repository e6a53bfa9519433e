#include "gguf/writer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "gguf/limits.hpp"
#include "gguf/text.hpp"

namespace sluice::gguf {
namespace {

constexpr std::uint32_t k_written_version = 3;
constexpr std::size_t k_flush_bytes = 1u << 20;

[[noreturn]] void fail_key(std::string_view key, const char* problem) {
  base::fail(ErrorCode::invalid_argument, "metadata key '{}' cannot be written: {}", printable(key), problem);
}

/// Collects bytes and hands them on in large pieces.
class Output {
 public:
  explicit Output(const ByteSink& sink) : sink_(sink) {}

  void bytes(const void* data, std::size_t n_bytes) {
    buffer_.append(static_cast<const char*>(data), n_bytes);
    n_bytes_ += n_bytes;
    if (buffer_.size() >= k_flush_bytes) flush();
  }
  template <typename Number>
  void number(Number value) {
    static_assert(std::is_arithmetic_v<Number>);
    bytes(&value, sizeof value);
  }
  void string(std::string_view text) {
    number(std::uint64_t{text.size()});
    bytes(text.data(), text.size());
  }
  void pad_to(std::uint64_t alignment) {
    const std::uint64_t n_zeros = base::round_up(n_bytes_, alignment) - n_bytes_;
    buffer_.append(n_zeros, '\0');
    n_bytes_ += n_zeros;
  }
  void flush() {
    if (!buffer_.empty()) sink_(std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }
  std::uint64_t position() const noexcept { return n_bytes_; }

 private:
  const ByteSink& sink_;
  std::string buffer_;
  std::uint64_t n_bytes_ = 0;
};

template <typename Stored, typename Kept>
void write_integer(std::string_view key, Kept value, Output& output) {
  if (!std::in_range<Stored>(value)) fail_key(key, "the number does not fit its type");
  output.number(static_cast<Stored>(value));
}

template <typename Kept>
void write_integer_as(std::string_view key, ValueType type, Kept value, Output& output) {
  switch (type) {
    case ValueType::u8:
      return write_integer<std::uint8_t>(key, value, output);
    case ValueType::i8:
      return write_integer<std::int8_t>(key, value, output);
    case ValueType::u16:
      return write_integer<std::uint16_t>(key, value, output);
    case ValueType::i16:
      return write_integer<std::int16_t>(key, value, output);
    case ValueType::u32:
      return write_integer<std::uint32_t>(key, value, output);
    case ValueType::i32:
      return write_integer<std::int32_t>(key, value, output);
    case ValueType::u64:
      return write_integer<std::uint64_t>(key, value, output);
    case ValueType::i64:
      return write_integer<std::int64_t>(key, value, output);
    default:
      fail_key(key, "it holds an integer, but its type is none");
  }
}

void write_float_as(std::string_view key, ValueType type, double value, Output& output) {
  if (type == ValueType::f64) return output.number(value);
  if (type != ValueType::f32) fail_key(key, "it holds a float, but its type is none");
  // Infinities and NaN convert; a finite number beyond the range of float would be undefined behaviour.
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()) &&
      std::abs(value) <= std::numeric_limits<double>::max()) {
    fail_key(key, "the number does not fit its type");
  }
  output.number(static_cast<float>(value));
}

void write_array(std::string_view key, const Array& array, std::uint32_t depth, Output& output);

void write_element(std::string_view key, const Array& array, std::uint32_t depth, const Value& value,
                   Output& output) {
  const auto* nested = std::get_if<Array>(&value.data);
  if (array.element_type != ValueType::array || nested == nullptr) fail_key(key, "its array mixes types");
  write_array(key, *nested, depth + 1, output);
}

void write_array(std::string_view key, const Array& array, std::uint32_t depth, Output& output) {
  if (depth > k_max_array_depth) fail_key(key, "its arrays are nested too deep");
  if (array.size() > k_max_array_elements) fail_key(key, "its array is too long");
  const ValueType type = array.element_type;
  output.number(static_cast<std::uint32_t>(type));
  output.number(std::uint64_t{array.size()});
  const auto write_elements = [&](const auto& elements) {
    using Elements = std::decay_t<decltype(elements)>;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if constexpr (std::is_same_v<Elements, StringArray>) {
        if (type != ValueType::string) fail_key(key, "it holds strings, but its element type is another");
        output.string(elements[i]);
      } else if constexpr (std::is_same_v<Elements, std::vector<Value>>) {
        write_element(key, array, depth, elements[i], output);
      } else if constexpr (std::is_floating_point_v<typename Elements::value_type>) {
        write_float_as(key, type, elements[i], output);
      } else if constexpr (std::is_same_v<typename Elements::value_type, std::uint8_t>) {
        // These are kept as raw bytes whatever their sign.
        if (value_type_bytes(type) == 1) {
          if (type == ValueType::boolean && elements[i] > 1) fail_key(key, "a bool must be 0 or 1");
          output.number(elements[i]);
        } else {
          write_integer_as(key, type, elements[i], output);
        }
      } else {
        write_integer_as(key, type, elements[i], output);
      }
    }
  };
  std::visit(write_elements, array.data);
}

void write_value(std::string_view key, const Value& value, Output& output) {
  output.number(static_cast<std::uint32_t>(value.type));
  if (const auto* number = std::get_if<std::uint64_t>(&value.data)) {
    write_integer_as(key, value.type, *number, output);
  } else if (const auto* signed_number = std::get_if<std::int64_t>(&value.data)) {
    write_integer_as(key, value.type, *signed_number, output);
  } else if (const auto* real = std::get_if<double>(&value.data)) {
    write_float_as(key, value.type, *real, output);
  } else if (const auto* flag = std::get_if<bool>(&value.data)) {
    if (value.type != ValueType::boolean) fail_key(key, "it holds a bool, but its type is another");
    output.number(static_cast<std::uint8_t>(*flag ? 1 : 0));
  } else if (const auto* text = std::get_if<std::string>(&value.data)) {
    if (value.type != ValueType::string) fail_key(key, "it holds a string, but its type is another");
    output.string(*text);
  } else {
    if (value.type != ValueType::array) fail_key(key, "it holds an array, but its type is another");
    write_array(key, std::get<Array>(value.data), 1, output);
  }
}

std::uint32_t alignment_of(const Metadata& metadata) {
  const std::uint64_t alignment = metadata.get_uint("general.alignment").value_or(k_default_alignment_bytes);
  if (alignment == 0 || alignment % k_alignment_unit_bytes != 0 || alignment > k_max_alignment_bytes) {
    base::fail(ErrorCode::invalid_argument,
               "general.alignment must be a multiple of {} up to {}, but it is {}", k_alignment_unit_bytes,
               k_max_alignment_bytes, alignment);
  }
  return static_cast<std::uint32_t>(alignment);
}

void check_unique_names(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin != names.end()) {
    base::fail(ErrorCode::invalid_argument, "tensor '{}' was declared twice", printable(*twin));
  }
}

}  // namespace

void Writer::add_tensor(std::string name, TensorType type, std::vector<std::uint64_t> dims) {
  SLUICE_CHECK(!is_header_written_);
  const std::string shown = printable(name);
  if (name.empty() || name.size() > k_max_tensor_name_bytes || !is_valid_utf8(name)) {
    base::fail(ErrorCode::invalid_argument, "tensor name '{}' must be UTF-8 text of 1 to {} bytes", shown,
               k_max_tensor_name_bytes);
  }
  if (dims.empty() || dims.size() > k_max_dims) {
    base::fail(ErrorCode::invalid_argument, "tensor '{}' has {} dimensions, expected 1 to {}", shown,
               dims.size(), k_max_dims);
  }
  const TypeTraits& traits = type_traits(type);
  TensorInfo tensor;
  tensor.name = std::move(name);
  tensor.type = type;
  tensor.n_dims = static_cast<std::uint32_t>(dims.size());
  std::uint64_t n_elements = 1;
  for (std::size_t dim_idx = 0; dim_idx < dims.size(); ++dim_idx) {
    const auto product = base::checked_mul(n_elements, dims[dim_idx]);
    if (!product || *product == 0 ||
        *product > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      base::fail(ErrorCode::invalid_argument, "tensor '{}': dimension {} is {}, which gives no usable size",
                 shown, dim_idx, dims[dim_idx]);
    }
    n_elements = *product;
    tensor.dims[dim_idx] = dims[dim_idx];
  }
  if (dims[0] % traits.block_elements != 0) {
    base::fail(ErrorCode::invalid_argument,
               "tensor '{}': rows of {} elements cannot be {}, whose blocks have {}", shown, dims[0],
               traits.name, traits.block_elements);
  }
  const auto size = base::checked_mul(n_elements / traits.block_elements, traits.block_bytes);
  if (!size) base::fail(ErrorCode::invalid_argument, "tensor '{}' is too large", shown);
  tensor.size_bytes = *size;
  tensors_.push_back(std::move(tensor));
}

void Writer::write_header(const ByteSink& sink) {
  SLUICE_CHECK(!is_header_written_);
  alignment_bytes_ = alignment_of(metadata_);
  check_unique_names(tensors_);

  Output output(sink);
  output.bytes("GGUF", 4);
  output.number(k_written_version);
  output.number(std::uint64_t{tensors_.size()});
  output.number(std::uint64_t{metadata_.entries().size()});
  for (const Metadata::Entry& entry : metadata_.entries()) {
    if (entry.key.empty() || entry.key.size() > k_max_key_bytes || !is_valid_utf8(entry.key)) {
      fail_key(entry.key, "a key is UTF-8 text of 1 to 65535 bytes");
    }
    output.string(entry.key);
    write_value(entry.key, entry.value, output);
  }
  std::uint64_t offset = 0;
  for (TensorInfo& tensor : tensors_) {
    output.string(tensor.name);
    output.number(tensor.n_dims);
    for (std::uint32_t dim_idx = 0; dim_idx < tensor.n_dims; ++dim_idx) output.number(tensor.dims[dim_idx]);
    output.number(type_traits(tensor.type).file_id);
    output.number(offset);
    tensor.offset_bytes = offset;
    const auto end = base::checked_add(offset, tensor.size_bytes);
    if (!end || *end > std::numeric_limits<std::uint64_t>::max() - 2 * k_max_header_bytes) {
      base::fail(ErrorCode::invalid_argument, "tensor '{}' makes the file too large", printable(tensor.name));
    }
    offset = base::round_up(*end, alignment_bytes_);
  }
  output.pad_to(alignment_bytes_);
  for (TensorInfo& tensor : tensors_) tensor.offset_bytes += output.position();
  output.flush();
  is_header_written_ = true;
}

void Writer::write_tensor(std::span<const std::byte> data, const ByteSink& sink) {
  SLUICE_CHECK(n_written_ < tensors_.size());
  SLUICE_CHECK(part_bytes_ == 0);
  const TensorInfo& tensor = tensors_[n_written_];
  if (data.size() != tensor.size_bytes) {
    base::fail(ErrorCode::invalid_argument, "tensor '{}' takes {} bytes of data, but {} were given",
               printable(tensor.name), tensor.size_bytes, data.size());
  }
  append_tensor(data, sink);
}

void Writer::append_tensor(std::span<const std::byte> part, const ByteSink& sink) {
  SLUICE_CHECK(is_header_written_);
  SLUICE_CHECK(n_written_ < tensors_.size());
  const TensorInfo& tensor = tensors_[n_written_];
  if (part.size() > tensor.size_bytes - part_bytes_) {
    base::fail(ErrorCode::invalid_argument, "tensor '{}' takes {} more bytes of data, but {} were given",
               printable(tensor.name), tensor.size_bytes - part_bytes_, part.size());
  }
  if (!part.empty()) sink(part);
  part_bytes_ += part.size();
  if (part_bytes_ < tensor.size_bytes) return;
  const std::vector<std::byte> padding(base::round_up(part_bytes_, alignment_bytes_) - part_bytes_);
  if (!padding.empty()) sink(padding);
  part_bytes_ = 0;
  ++n_written_;
}

std::vector<std::byte> Writer::write_all(const std::vector<std::vector<std::byte>>& tensor_data) {
  SLUICE_CHECK(tensor_data.size() == tensors_.size());
  std::vector<std::byte> file;
  const ByteSink sink = [&file](std::span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
  };
  write_header(sink);
  for (const std::vector<std::byte>& data : tensor_data) write_tensor(data, sink);
  return file;
}

}  // namespace sluice::gguf
