#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::gguf {

/// Random access to the bytes of one file, however it is stored. Implemented above this module (files) and by
/// tests (memory), because gguf parses bytes and opens nothing.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Name for messages: normally the path.
  virtual const std::string& name() const = 0;
  virtual std::uint64_t size() const = 0;
  /// Fills `out` from `offset`. Requires offset + out.size() <= size(). Throws Error(io).
  virtual void read(std::uint64_t offset, std::span<std::byte> out) = 0;
};

}  // namespace sluice::gguf
