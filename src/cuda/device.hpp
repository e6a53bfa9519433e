#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace sluice::cuda {

/// Throws Error(io) that says what failed on the device, and why.
void check(cudaError_t result, const char* what);

/// Memory of the device, or of the host where the device reads and writes it, too.
class Memory {
 public:
  enum class Where { device, host };
  Memory() = default;
  /// Throws Error(budget).
  Memory(std::size_t bytes, Where where);
  ~Memory();
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(where_, other.where_);
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Where where_ = Where::device;
};

/// The queue of a device's work.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const noexcept { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "waiting for the GPU"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace sluice::cuda
