#pragma once

// Q3_K: three bits with signed scales of six bits.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = d * (scale - 32) * q, per 16; q = low bit pair (as Q2_K) - 4 unless the mask bit is set: element 32 g
/// + l of the block has bit g of hmask[l]. The 6-bit scales: low nibbles in bytes 0-7, high bit pairs in
/// bytes 8-11.
struct BlockQ3K {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t hmask[32];
  std::uint8_t qs[64];
  std::uint8_t scales[12];
  Half d;
};

inline void unpack(const BlockQ3K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t s = 0; s < 16; ++s) {
    const int low = s < 8 ? block.scales[s] & 0xf : block.scales[s - 8] >> 4;
    const int high = block.scales[8 + s % 4] >> 2 * (s / 4) & 3;
    out.scale[s] = static_cast<std::int8_t>((low | high << 4) - 32);
  }
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint8_t* qs = block.qs + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l) {
      const int low = qs[l] >> 2 * (g % 4) & 3;
      const int high = block.hmask[l] >> g & 1;
      out.q[32 * g + l] = static_cast<std::int8_t>(low + 4 * high - 4);
    }
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

struct Q3K {
  static constexpr int k_block_bytes = 110, k_max = 7, k_sub_groups = 4;
  static constexpr bool k_wide = false;
  static constexpr SumUse k_sums = SumUse::offset;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, KPanel& panel,
                                 Sink sink) noexcept {
    // Bytes 94..109: the last two of q, 12 bytes with sixteen 6-bit scales, d.
    const Quad tail = transpose(p + 94, stride);
    const Ints a = bit_or(srl32<16>(tail.v0), sll32<16>(tail.v1));
    const Ints b = bit_or(srl32<16>(tail.v1), sll32<16>(tail.v2));
    const Ints c = bit_or(srl32<16>(tail.v2), sll32<16>(tail.v3));
    const Ints four = set8(0x0F), top = set8(0x30), bias = set8(32);
    store_signed_scales16<0, 4>(sub8(and_or(sll32<4>(c), top, bit_and(a, four)), bias), panel);
    store_signed_scales16<4, 4>(sub8(and_or(sll32<2>(c), top, bit_and(b, four)), bias), panel);
    store_signed_scales16<8, 4>(sub8(and_or(c, top, bit_and(srl32<4>(a), four)), bias), panel);
    store_signed_scales16<12, 4>(sub8(and_or(srl32<2>(c), top, bit_and(srl32<4>(b), four)), bias), panel);
    storef(panel.d, half_to_float(srl32<16>(tail.v3)));
    const Ints two = set8(0x03), third = set8(0x04);
    const Eight high(transpose32(p, stride));  // bit 4 half + j: third bit of run j of the half
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Eight v(transpose32(p + 32 + 32 * half, stride));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        const Ints bits = half == 0 ? high.at[g] : srl32<4>(high.at[g]);
        sink.put(32 * half + g, and_or(sll32<2>(bits), third, bit_and(v.at[g], two)));
        sink.put(32 * half + 8 + g, and_or(sll32<1>(bits), third, bit_and(srl32<2>(v.at[g]), two)));
        sink.put(32 * half + 16 + g, and_or(bits, third, bit_and(srl32<4>(v.at[g]), two)));
        sink.put(32 * half + 24 + g, and_or(srl32<1>(bits), third, bit_and(srl32<6>(v.at[g]), two)));
      }
    }
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

struct Q3KRowDot {
  /// The sixteen 6-bit scales, less 32, from their 12 bytes.
  static SLUICE_INLINE __m256i scales_of(const std::uint8_t* p) noexcept {
    std::uint32_t a, b, c;
    __builtin_memcpy(&a, p, 4);
    __builtin_memcpy(&b, p + 4, 4);
    __builtin_memcpy(&c, p + 8, 4);
    constexpr std::uint32_t four = 0x0F0F0F0F, two = 0x03030303;
    const auto dword = [](std::uint32_t v) { return static_cast<int>(v); };
    const __m128i bytes = _mm_setr_epi32(
        dword((a & four) | (c & two) << 4), dword((b & four) | (c >> 2 & two) << 4),
        dword((a >> 4 & four) | (c >> 4 & two) << 4), dword((b >> 4 & four) | (c >> 6 & two) << 4));
    return _mm256_cvtepi8_epi16(_mm_sub_epi8(bytes, _mm_set1_epi8(32)));
  }
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::uint16_t d[k_lanes];
    const Ints two = set8(0x03), third = set8(0x04);
    const CrumbOrder order(x.q);
    const __m256i x_sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sum));
    const Ints total =
        one_block(fold_rows<k_step_ahead_bytes>(p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          d[r] = load_u16(row + 108);
          const __m256i s = scales_of(row + 96);
          const Ints high = load_twice(row);  // bit 4 half + j: third bit of run j of the half
          const Ints v = load_any(row + 32);
          const Ints w0 = and_or(rotate<2, -2>(high), third, bit_and(v, two));
          const Ints w1 = and_or(rotate<1, -3>(high), third, bit_and(srl32<2>(v), two));
          const Ints w2 = and_or(rotate<0, -4>(high), third, bit_and(srl32<4>(v), two));
          const Ints w3 = and_or(rotate<-1, -5>(high), third, bit_and(srl32<6>(v), two));
          Ints a = dot16(offset_of<2>(s, x_sums), pairs(w0, order.q[0]), scale_runs<0, 1, 8, 9>(s));
          a = dot16(a, pairs(w1, order.q[1]), scale_runs<2, 3, 10, 11>(s));
          a = dot16(a, pairs(w2, order.q[2]), scale_runs<4, 5, 12, 13>(s));
          return dot16(a, pairs(w3, order.q[3]), scale_runs<6, 7, 14, 15>(s));
        }));
    storef(sums, fma(to_float(total), mulf(halves_to_floats(d), broadcast_float(x.d)), loadf(sums)));
  }
};

template <>
struct RowDot<Q3K> : Q3KRowDot {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
