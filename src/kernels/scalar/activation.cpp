#include "kernels/scalar/activation.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/quant.hpp"

namespace sluice::kernels {
namespace {

constexpr std::size_t k_part_alignment = 64;

constexpr std::size_t pad(std::size_t bytes) noexcept {
  return (bytes + k_part_alignment - 1) / k_part_alignment * k_part_alignment;
}

}  // namespace

ActivationLayout activation_layout(ActivationFormat format, std::size_t n) noexcept {
  ActivationLayout layout;
  switch (format) {
    case ActivationFormat::f32:
      layout.row_bytes = pad(n * sizeof(float));
      break;
    case ActivationFormat::q8_32:
      layout.scale_offset = pad(n);
      layout.sum_offset = layout.scale_offset + pad(n / 32 * sizeof(float));
      layout.row_bytes = layout.sum_offset + pad(n / 32 * sizeof(std::int32_t));
      break;
    case ActivationFormat::q8_256:
      layout.scale_offset = pad(n);
      layout.sum_offset = layout.scale_offset + pad(n / 256 * sizeof(float));
      layout.row_bytes = layout.sum_offset + pad(n / 16 * sizeof(std::int16_t));
      break;
  }
  return layout;
}

void quantize_activation(ActivationFormat format, const float* x, std::size_t n, void* out) noexcept {
  switch (format) {
    case ActivationFormat::f32:
      return scalar::quantize_f32(x, n, out);
    case ActivationFormat::q8_32:
      return scalar::quantize_q8_32(x, n, out);
    case ActivationFormat::q8_256:
      return scalar::quantize_q8_256(x, n, out);
  }
}

namespace scalar {
namespace {

/// Round to nearest even for |value| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
float round_small(float value) noexcept {
  constexpr float k_shift = 0x1.8p23f;
  return (value + k_shift) - k_shift;
}

/// Writes the block's q and returns its d.
float quantize_block(const float* x, std::size_t n, std::int8_t* q) noexcept {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  const float d = std::bit_cast<float>(largest) / 127.0f;
  // Both comparisons are false for NaN.
  if (!(d > 0.0f && d < std::bit_cast<float>(0x7f800000u))) {
    std::memset(q, 0, n);
    return d;
  }
  for (std::size_t i = 0; i < n; ++i) {
    q[i] = static_cast<std::int8_t>(round_small(std::clamp(x[i] / d, -127.0f, 127.0f)));
  }
  return d;
}

std::int32_t sum_of(const std::int8_t* q, std::size_t n) noexcept {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += q[i];
  return sum;
}

/// Sums of `sum_elements` quants, stored as Sum, after blocks of `block_elements` that share a scale.
template <typename Sum>
void quantize_row(ActivationFormat format, std::size_t block_elements, std::size_t sum_elements,
                  const float* x, std::size_t n, void* out) noexcept {
  const ActivationLayout layout = activation_layout(format, n);
  auto* q = static_cast<std::int8_t*>(out);
  auto* scales = reinterpret_cast<float*>(q + layout.scale_offset);
  auto* sums = reinterpret_cast<Sum*>(q + layout.sum_offset);
  for (std::size_t b = 0; b < n / block_elements; ++b) {
    scales[b] = quantize_block(x + b * block_elements, block_elements, q + b * block_elements);
  }
  // 16 quants sum to at most 16 * 127, which fits an int16.
  for (std::size_t s = 0; s < n / sum_elements; ++s) {
    sums[s] = static_cast<Sum>(sum_of(q + s * sum_elements, sum_elements));
  }
}

}  // namespace

void quantize_f32(const float* x, std::size_t n, void* out) noexcept {
  if (n != 0) std::memcpy(out, x, n * sizeof(float));
}

void quantize_q8_32(const float* x, std::size_t n, void* out) noexcept {
  quantize_row<std::int32_t>(ActivationFormat::q8_32, 32, 32, x, n, out);
}

void quantize_q8_256(const float* x, std::size_t n, void* out) noexcept {
  quantize_row<std::int16_t>(ActivationFormat::q8_256, 256, 16, x, n, out);
}

}  // namespace scalar
}  // namespace sluice::kernels
