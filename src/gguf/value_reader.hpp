#pragma once

#include <cstdint>
#include <vector>

#include "gguf/cursor.hpp"
#include "gguf/metadata.hpp"

namespace sluice::gguf {

/// Reads the metadata values of one file. Memory for a value is claimed only after the bytes it stands for
/// are known to be in the file, and never more than a small multiple of them.
class ValueReader {
 public:
  explicit ValueReader(Cursor& cursor) noexcept : cursor_(cursor) {}

  /// A type id and the value. Throws Error(invalid_file).
  Value read();

 private:
  ValueType read_type();
  Value read_scalar(ValueType type);
  Array read_array(std::uint32_t depth);
  StringArray read_strings(std::uint64_t count);
  std::vector<Value> read_nested(std::uint64_t count, std::uint64_t count_offset, std::uint32_t depth);
  std::vector<std::uint8_t> read_flags(std::uint64_t count);
  template <typename Stored, typename Kept>
  std::vector<Kept> read_numbers(std::uint64_t count);

  Cursor& cursor_;
  std::uint64_t n_nested_ = 0;
};

}  // namespace sluice::gguf
