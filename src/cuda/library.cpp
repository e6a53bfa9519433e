#include "cuda/library.hpp"

#include "base/error.hpp"
#include "cuda/cuda_ops.hpp"

/// What the program calls.
extern "C" __attribute__((visibility("default"))) sluice::kernels::Ops* SLUICE_CUDA_MAKE_OPS(int device) {
  using namespace sluice;
  int n_devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&n_devices);
  if (result == cudaErrorInsufficientDriver) {
    base::fail(ErrorCode::unsupported,
               "the GPU cannot be used: there is no NVIDIA driver, or it is too old for CUDA {}; install "
               "one, or run "
               "on the CPU",
               CUDART_VERSION / 1000);
  }
  if (result == cudaErrorNoDevice || (result == cudaSuccess && n_devices == 0))
    base::fail(ErrorCode::unsupported, "the GPU cannot be used: the driver sees none; run on the CPU");
  if (result != cudaSuccess) {
    base::fail(ErrorCode::unsupported, "the GPU cannot be used: {} ({}); run on the CPU",
               cudaGetErrorString(result), cudaGetErrorName(result));
  }
  if (device < 0 || device >= n_devices) {
    base::fail(ErrorCode::invalid_argument, "GPU {} was asked for; the driver sees {}: 0 to {}", device,
               n_devices, n_devices - 1);
  }
  return new cuda::CudaOps(device);
}
