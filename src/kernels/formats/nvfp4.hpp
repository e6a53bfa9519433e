#pragma once

// NVFP4: FP4 with a scale of eight bits per 16 elements. A file may have one more scale for a matrix, in a
// tensor of its own: kernels::Weight::scale.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {

/// 64 elements in four sub-blocks of 16: w = ue4m3(d[s]) / 2 * k_fp4_values[q]. Sub-block s owns qs[8s ..
/// 8s+7], low nibbles first.
struct BlockNvfp4 {
  static constexpr std::size_t k_elements = 64, k_part_elements = 16;
  std::uint8_t d[4];
  std::uint8_t qs[32];
};

/// Half of an unsigned E4M3 number (bias 7, top bit unused); 0x7f, its NaN, counts as 0, as ggml does.
inline float half_of_ue4m3(std::uint8_t bits) noexcept {
  if (bits == 0x7f) return 0.0f;
  const int exponent = bits >> 3 & 0xf;
  const auto mantissa = static_cast<float>(bits & 7);
  if (exponent == 0) return mantissa * 0x1p-10f;
  const float power = std::bit_cast<float>(static_cast<std::uint32_t>(exponent - 8 + 127) << 23);
  return (1.0f + mantissa * 0.125f) * power;
}

inline void unpack(const BlockNvfp4& block, std::size_t part, UnpackedPart<16>& out) noexcept {
  out.scale = half_of_ue4m3(block.d[part]);
  for (std::size_t j = 0; j < 8; ++j) {
    const std::uint8_t digits = block.qs[8 * part + j];
    out.q[j] = k_fp4_values[digits & 0xf];
    out.q[8 + j] = k_fp4_values[digits >> 4];
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// Signed values, twice those of FP4, with a scale for each 16.
struct Nvfp4 {
  static constexpr int k_block_bytes = 36, k_block_elements = 64, k_max = 255, k_offset = k_wide_bias;
  static constexpr int k_scales = 2;  ///< Of 32 elements.
  static constexpr bool k_wide = true, k_has_min = false;
  static SLUICE_INLINE Ints table() noexcept {
    alignas(16) static constexpr std::int8_t values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                           0, -1, -2, -3, -4, -6, -8, -12};
    return bias_wide(table16(values));
  }
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink,
                                 Floats (&scales)[4]) noexcept {
    const Ints d = transpose(p, stride).v0;
    scales[0] = half_of_ue4m3(pick<0, -1, -1, -1>(d));
    scales[1] = half_of_ue4m3(pick<1, -1, -1, -1>(d));
    scales[2] = half_of_ue4m3(pick<2, -1, -1, -1>(d));
    scales[3] = half_of_ue4m3(pick<3, -1, -1, -1>(d));
    const Eight q(transpose32(p + 4, stride));
    const Ints mask = set8(0x0F), values = table();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // two dwords: low nibbles are the first eight elements
      const Ints a = q.at[2 * i], b = q.at[2 * i + 1];
      sink.put(4 * i, lookup(values, bit_and(a, mask)));
      sink.put(4 * i + 1, lookup(values, bit_and(b, mask)));
      sink.put(4 * i + 2, lookup(values, bit_and(srl32<4>(a), mask)));
      sink.put(4 * i + 3, lookup(values, bit_and(srl32<4>(b), mask)));
    }
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

template <>
struct RowDot<Nvfp4> : FusedRowDot<Nvfp4> {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
