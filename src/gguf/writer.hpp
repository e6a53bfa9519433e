#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gguf/metadata.hpp"
#include "gguf/reader.hpp"

namespace sluice::gguf {

/// Receives the bytes of a file in order.
using ByteSink = std::function<void(std::span<const std::byte>)>;

/// Builds a GGUF v3 file in two steps: declare everything, then write the header and the tensors in order.
/// For tests and for the tools that make files.
class Writer {
 public:
  Metadata& metadata() noexcept { return metadata_; }
  /// Declares a tensor; its offset follows from the order of declaration. Throws Error(invalid_argument) when
  /// dims[0] is not a multiple of the type's block.
  void add_tensor(std::string name, TensorType type, std::vector<std::uint64_t> dims);
  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }

  /// Writes everything before the data (with padding). After it, tensors() has absolute offsets. Once only.
  /// Throws Error(invalid_argument) for a duplicate tensor and for metadata that its declared type cannot
  /// hold.
  void write_header(const ByteSink& sink);
  /// Writes one tensor's bytes and the padding after it. Call in order of declaration. Throws
  /// Error(invalid_argument) when the number of bytes is not the tensor's.
  void write_tensor(std::span<const std::byte> data, const ByteSink& sink);
  /// Writes the next bytes of the tensor whose turn it is, for data that is made piece by piece: parts of any
  /// size, in order. Its last byte is followed by the padding, and the next call begins the next tensor.
  /// Throws Error(invalid_argument) when the part reaches beyond the tensor.
  void append_tensor(std::span<const std::byte> part, const ByteSink& sink);
  /// Convenience for small files: header and data of all tensors in one buffer.
  std::vector<std::byte> write_all(const std::vector<std::vector<std::byte>>& tensor_data);

 private:
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;
  std::size_t n_written_ = 0;
  std::uint64_t part_bytes_ = 0;  ///< Of tensors_[n_written_], given by append_tensor().
  std::uint32_t alignment_bytes_ = 0;
  bool is_header_written_ = false;
};

}  // namespace sluice::gguf
