#pragma once

// Arithmetic that all kernels share. Contraction is off (-fmad=false): a fused step is written as one.

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/args.hpp"

namespace sluice::cuda {

constexpr unsigned k_all_lanes = 0xffffffffu;
constexpr int k_warp = 32;

/// Every kernel begins with this. On Hopper and later the next kernel may start while this one runs, up to its own
/// call, and nothing here has been waited for before: only weights may be read.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The next kernel may start; without it that is when this one ends.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// The exponential of kernels/vector_math-inl.hpp, step by step, so that the CPU's bits come out.
__device__ inline float exponential(float x) {
  const float highest = 88.0f, lowest = -87.33654f;
  const bool is_tiny = x < lowest;
  const float held = x > highest ? highest : (is_tiny ? lowest : x);
  const float n = rintf(held * 1.44269504088896341f);
  float r = __fmaf_rn(-n, 0.693359375f, held);
  r = __fmaf_rn(-n, -2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __fmaf_rn(p, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  p = __fmaf_rn(p, r * r, r) + 1.0f;
  const float power = __int_as_float((__float2int_rn(n) + 127) << 23);
  return is_tiny ? 0.0f : p * power;
}

__device__ inline float swiglu(float gate, float up) {
  return __fdiv_rn(gate, 1.0f + exponential(-gate)) * up;
}

__device__ inline float half_bits(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ inline float sum_of_warp(float value) {
  for (int o = 16; o > 0; o >>= 1) value += __shfl_xor_sync(k_all_lanes, value, o);
  return value;
}

__device__ inline float max_of_warp(float value) {
  for (int o = 16; o > 0; o >>= 1) value = fmaxf(value, __shfl_xor_sync(k_all_lanes, value, o));
  return value;
}

/// Of all threads, in a fixed order; `shared` has one place for each warp. All threads get it.
__device__ inline float sum_of_block(float value, float* shared) {
  value = sum_of_warp(value);
  if (threadIdx.x % k_warp == 0) shared[threadIdx.x / k_warp] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / k_warp; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

template <typename Function>
Kernel make_kernel(Function* function, std::uint32_t block, std::uint32_t rows = 1) noexcept {
  return {reinterpret_cast<const void*>(function), block, rows, 1, 1};
}

}  // namespace sluice::cuda
