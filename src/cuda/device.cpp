#include "cuda/device.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::cuda {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  base::fail(ErrorCode::io, "the GPU failed at {}: {} ({})", what, cudaGetErrorString(result),
             cudaGetErrorName(result));
}

Memory::Memory(std::size_t bytes, Where where) : bytes_(bytes), where_(where) {
  if (bytes == 0) return;
  void* data = nullptr;
  const cudaError_t result = where == Where::device
                                 ? cudaMalloc(&data, bytes)
                                 : cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // Else the next call would report it.
    std::size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory");
    base::fail(
        ErrorCode::budget,
        "{} of {} cannot be had; the GPU has {} free of {}; use a smaller context or a smaller model, or "
        "run on the CPU",
        base::format_bytes(bytes), where == Where::device ? "GPU memory" : "locked memory",
        base::format_bytes(free_bytes), base::format_bytes(total_bytes));
  }
  check(result, "taking memory");
  data_ = static_cast<std::byte*>(data);
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  if (where_ == Where::device) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

Stream::~Stream() {
  cudaStreamDestroy(stream_);
}

}  // namespace sluice::cuda
