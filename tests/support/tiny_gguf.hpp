#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "gguf/byte_source.hpp"
#include "gguf/metadata.hpp"
#include "gguf/reader.hpp"
#include "gguf/writer.hpp"

namespace sluice::test {

/// A file in memory. Reads past the end fail the contract of ByteSource, so they throw.
class MemorySource : public gguf::ByteSource {
 public:
  MemorySource(std::string name, std::vector<std::byte> bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      base::fail(ErrorCode::internal, "{}: read of {} bytes at {} leaves the file", name_, out.size(),
                 offset);
    }
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::string name_;
  std::vector<std::byte> bytes_;
};

/// A folder in memory: path -> bytes. opener() borrows it.
class MemoryFolder {
 public:
  std::vector<std::byte>& operator[](const std::string& path) { return files_[path]; }
  void erase(const std::string& path) { files_.erase(path); }
  gguf::SourceOpener opener() const {
    return [this](const std::string& path) -> std::unique_ptr<gguf::ByteSource> {
      const auto file = files_.find(path);
      if (file == files_.end()) base::fail(ErrorCode::io, "{}: no such file", path);
      return std::make_unique<MemorySource>(path, file->second);
    };
  }

 private:
  std::map<std::string, std::vector<std::byte>> files_;
};

/// Builds files byte by byte, without the project's own writer, so that a shared mistake cannot hide.
class RawBytes {
 public:
  template <typename Number>
  RawBytes& number(Number value) {
    static_assert(std::is_arithmetic_v<Number>);
    // Not insert(): GCC 12 takes its inlined copy for an overflow.
    for (std::size_t i = 0; i < sizeof value; ++i)
      bytes_.push_back(reinterpret_cast<const std::byte*>(&value)[i]);
    return *this;
  }
  RawBytes& u8(std::uint8_t value) { return number(value); }
  RawBytes& u32(std::uint32_t value) { return number(value); }
  RawBytes& u64(std::uint64_t value) { return number(value); }
  RawBytes& text(std::string_view text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  RawBytes& string(std::string_view value) { return u64(value.size()).text(value); }
  RawBytes& zeros(std::size_t n_bytes) {
    bytes_.resize(bytes_.size() + n_bytes, std::byte{0});
    return *this;
  }
  RawBytes& pad_to(std::size_t alignment) {
    return zeros((alignment - bytes_.size() % alignment) % alignment);
  }
  RawBytes& header(std::uint64_t n_tensors, std::uint64_t n_entries, std::uint32_t version = 3) {
    return text("GGUF").u32(version).u64(n_tensors).u64(n_entries);
  }
  RawBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type_id,
                   std::uint64_t offset) {
    string(name).u32(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) u64(dim);
    return u32(type_id).u64(offset);
  }
  std::size_t size() const { return bytes_.size(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

inline gguf::Value uint_value(std::uint64_t value, gguf::ValueType type = gguf::ValueType::u32) {
  return {type, value};
}
inline gguf::Value int_value(std::int64_t value, gguf::ValueType type = gguf::ValueType::i32) {
  return {type, value};
}
inline gguf::Value float_value(double value, gguf::ValueType type = gguf::ValueType::f32) {
  return {type, value};
}
inline gguf::Value bool_value(bool value) {
  return {gguf::ValueType::boolean, value};
}
inline gguf::Value string_value(std::string value) {
  return {gguf::ValueType::string, std::move(value)};
}
inline gguf::Value strings_value(const std::vector<std::string>& values) {
  gguf::StringArray strings;
  for (const std::string& value : values) strings.push_back(value);
  return {gguf::ValueType::array, gguf::Array{gguf::ValueType::string, std::move(strings)}};
}
/// `Element` is the type that Array keeps for `type`.
template <typename Element>
gguf::Value array_value(gguf::ValueType type, std::vector<Element> elements) {
  return {gguf::ValueType::array, gguf::Array{type, std::move(elements)}};
}

/// Bytes that differ from tensor to tensor, so that a swapped extent shows.
inline std::vector<std::byte> pattern_bytes(std::size_t n_bytes, std::uint32_t seed) {
  std::vector<std::byte> bytes(n_bytes);
  for (std::size_t i = 0; i < n_bytes; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed * 31 + 1);
  return bytes;
}

/// A whole file with pattern data in its tensors.
inline std::vector<std::byte> write_with_pattern(gguf::Writer& writer) {
  std::vector<std::vector<std::byte>> data;
  for (const gguf::TensorInfo& tensor : writer.tensors()) {
    data.push_back(pattern_bytes(tensor.size_bytes, static_cast<std::uint32_t>(data.size())));
  }
  return writer.write_all(data);
}

inline gguf::ModelFile parse_bytes(std::vector<std::byte> bytes, const gguf::ParseOptions& options = {},
                                   const std::string& name = "tiny.gguf") {
  MemorySource source(name, std::move(bytes));
  return gguf::parse_file(source, options);
}

/// The message of the Error that parsing ends with, or an empty string when it succeeds.
inline std::string parse_error(std::vector<std::byte> bytes, const gguf::ParseOptions& options = {}) {
  try {
    parse_bytes(std::move(bytes), options);
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_file ? error.what()
                                                   : std::string("wrong code: ") + error.what();
  }
  return {};
}

}  // namespace sluice::test
