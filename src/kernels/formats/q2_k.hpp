#pragma once

// Q2_K: two bits with scales and minimums of four bits.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = (d * scale) * q - (dmin * min), per 16: scale in the low nibble of scales[s], min in the high one.
/// Each half of 128 elements owns 32 bytes of qs; element 32 p + l of it is bit pair p of byte l.
struct BlockQ2K {
  static constexpr std::size_t k_elements = 256;
  static constexpr bool k_has_min = true;
  std::uint8_t scales[16];
  std::uint8_t qs[64];
  Half d, dmin;
};

inline void unpack(const BlockQ2K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  out.d_min = block.dmin.value();
  for (std::size_t s = 0; s < 16; ++s) {
    out.scale[s] = static_cast<std::int8_t>(block.scales[s] & 0xf);
    out.min[s] = block.scales[s] >> 4;
  }
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint8_t* qs = block.qs + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l)
      out.q[32 * g + l] = static_cast<std::int8_t>(qs[l] >> 2 * (g % 4) & 3);
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

struct Q2K {
  static constexpr int k_block_bytes = 84, k_max = 3, k_sub_groups = 4;
  static constexpr bool k_wide = false;
  static constexpr SumUse k_sums = SumUse::min;

  template <int First>
  static SLUICE_INLINE void scales(Ints v, KPanel& panel) noexcept {
    const Ints four = set8(0x0F);
    store_unsigned_scales<First>(bit_and(v, four), panel);
    const Ints mins = bit_and(srl32<4>(v), four);
    store(panel.pair + First / 2 * k_vec_bytes, pick<0, -1, 1, -1>(mins));
    store(panel.pair + (First / 2 + 1) * k_vec_bytes, pick<2, -1, 3, -1>(mins));
  }

  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, KPanel& panel,
                                 Sink sink) noexcept {
    const Quad head = transpose(p, stride);
    scales<0>(head.v0, panel);
    scales<4>(head.v1, panel);
    scales<8>(head.v2, panel);
    scales<12>(head.v3, panel);
    const Ints tail = transpose(p + 68, stride).v3;
    storef(panel.d, half_to_float(tail));
    storef(panel.d_min, half_to_float(srl32<16>(tail)));
    const Ints two = set8(0x03);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Eight v(transpose32(p + 16 + 32 * half, stride));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        sink.put(32 * half + g, bit_and(v.at[g], two));
        sink.put(32 * half + 8 + g, bit_and(srl32<2>(v.at[g]), two));
        sink.put(32 * half + 16 + g, bit_and(srl32<4>(v.at[g]), two));
        sink.put(32 * half + 24 + g, bit_and(srl32<6>(v.at[g]), two));
      }
    }
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

struct Q2KRowDot {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    const Ints two = set8(0x03), four = set8(0x0F);
    const Quad head = transpose(p, stride);
    const Ints heads[4] = {head.v0, head.v1, head.v2, head.v3};
    Ints low = zero();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Ints mins = bit_and(srl32<4>(heads[i]), four);
      low = dot16(low, pick<0, -1, 1, -1>(mins), broadcast32(x.sum + 8 * i));
      low = dot16(low, pick<2, -1, 3, -1>(mins), broadcast32(x.sum + 8 * i + 4));
    }
    const CrumbOrder order(x.q);
    const Ints total =
        one_block(fold_rows<k_step_ahead_bytes>(p, stride, x, [&](const std::uint8_t* row, int) noexcept {
          const __m128i scales =
              _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)), _mm_set1_epi8(0x0F));
          const __m256i s = _mm256_cvtepu8_epi16(scales);
          const Ints v = load_any(row + 16);
          Ints a = dot16(zero(), pairs(bit_and(v, two), order.q[0]), scale_runs<0, 1, 8, 9>(s));
          a = dot16(a, pairs(bit_and(srl32<2>(v), two), order.q[1]), scale_runs<2, 3, 10, 11>(s));
          a = dot16(a, pairs(bit_and(srl32<4>(v), two), order.q[2]), scale_runs<4, 5, 12, 13>(s));
          return dot16(a, pairs(bit_and(srl32<6>(v), two), order.q[3]), scale_runs<6, 7, 14, 15>(s));
        }));
    const Ints tail = transpose(p + 68, stride).v3;
    const Floats d_x = broadcast_float(x.d);
    const Floats y = fma(to_float(total), mulf(half_to_float(tail), d_x), loadf(sums));
    storef(sums, fnma(to_float(low), mulf(half_to_float(srl32<16>(tail)), d_x), y));
  }
};

template <>
struct RowDot<Q2K> : Q2KRowDot {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
