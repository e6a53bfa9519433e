#pragma once

// Activation quantization: the rules of scalar/activation.hpp, the same bits. Include after the vector
// vocabulary.

#include "kernels/quant.hpp"

namespace sluice::kernels::simd {
namespace {

/// Blocks of BlockElements share a scale; Sum holds the sum of SumElements quants.
template <ActivationFormat Format, std::size_t BlockElements, std::size_t SumElements, class Sum>
void quantize_row(const float* x, std::size_t n, void* out) noexcept {
  const ActivationLayout layout = activation_layout(Format, n);
  auto* q = static_cast<std::int8_t*>(out);
  auto* scales = reinterpret_cast<float*>(q + layout.scale_offset);
  auto* sums = reinterpret_cast<Sum*>(q + layout.sum_offset);
  for (std::size_t i = 0; i < n; i += BlockElements) {
    const float d = __builtin_bit_cast(float, max_magnitude_bits(x + i, BlockElements)) / 127.0f;
    *scales++ = d;
    if (!(d > 0.0f && d < __builtin_inff())) {  // zero, infinite or NaN
      __builtin_memset(q + i, 0, BlockElements);
      for (std::size_t s = 0; s < BlockElements / SumElements; ++s) *sums++ = 0;
      continue;
    }
    const Floats scale = setf(d);
    for (std::size_t k = i; k < i + BlockElements; k += SumElements) {
      std::int32_t sum = 0;
      for (std::size_t e = k; e < k + SumElements; e += 16) sum += quantize16(x + e, scale, q + e);
      *sums++ = static_cast<Sum>(sum);
    }
  }
}

constexpr auto quantize_q8_32 = quantize_row<ActivationFormat::q8_32, 32, 32, std::int32_t>;
constexpr auto quantize_q8_256 = quantize_row<ActivationFormat::q8_256, 256, 16, std::int16_t>;

void quantize_f32(const float* x, std::size_t n, void* out) noexcept {
  if (n != 0) __builtin_memcpy(out, x, n * sizeof(float));
}

}  // namespace
}  // namespace sluice::kernels::simd
