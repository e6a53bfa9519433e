#pragma once

// Q6_K: six bits with scales of eight bits.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = d * scale * (q - 32), per 16. Each half of 128 owns 64 bytes of ql and 32 of qh; its element 32 p + l
/// has nibble p / 2 of ql[32 (p % 2) + l] and bit pair p of qh[l].
struct BlockQ6K {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t ql[128];
  std::uint8_t qh[64];
  std::int8_t scales[16];
  Half d;
};

inline void unpack(const BlockQ6K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t s = 0; s < 16; ++s) out.scale[s] = block.scales[s];
  for (std::size_t g = 0; g < 8; ++g) {
    const std::size_t part = g % 4;
    const std::uint8_t* ql = block.ql + 64 * (g / 4) + 32 * (part % 2);
    const std::uint8_t* qh = block.qh + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l) {
      const int low = ql[l] >> 4 * (part / 2) & 0xf;
      const int high = qh[l] >> 2 * part & 3;
      out.q[32 * g + l] = static_cast<std::int8_t>((low | high << 4) - 32);
    }
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

struct Q6K {
  static constexpr std::size_t k_next_tile_ahead = 1;
  static constexpr int k_block_bytes = 210, k_max = 63, k_sub_groups = 4;
  static constexpr bool k_wide = false;
  static constexpr SumUse k_sums = SumUse::offset;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, KPanel& panel,
                                 Sink sink) noexcept {
    const Quad scales = transpose(p + 192, stride);
    store_signed_scales16<0, 32>(scales.v0, panel);
    store_signed_scales16<4, 32>(scales.v1, panel);
    store_signed_scales16<8, 32>(scales.v2, panel);
    store_signed_scales16<12, 32>(scales.v3, panel);
    storef(panel.d, half_to_float(srl32<16>(transpose(p + 194, stride).v3)));
    const Ints mask = set8(0x0F), top = set8(0x30);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {  // of 128 elements
      const Eight a(transpose32(p + 64 * half, stride));
      const Eight b(transpose32(p + 64 * half + 32, stride));
      const Eight high(transpose32(p + 128 + 32 * half, stride));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        const Ints h = high.at[g];
        sink.put(32 * half + g, and_or(sll32<4>(h), top, bit_and(a.at[g], mask)));
        sink.put(32 * half + 8 + g, and_or(sll32<2>(h), top, bit_and(b.at[g], mask)));
        sink.put(32 * half + 16 + g, and_or(h, top, bit_and(srl32<4>(a.at[g]), mask)));
        sink.put(32 * half + 24 + g, and_or(srl32<2>(h), top, bit_and(srl32<4>(b.at[g]), mask)));
      }
    }
  }
};

#ifdef SLUICE_ROW_DOT_256

template <>
struct RowDot<Q6K> {
  /// Words 2 I and 2 I + 1 of both halves of the vector, the first in the lower half and the second in the
  /// upper.
  template <int I>
  static SLUICE_INLINE Ints scale_runs(Ints words) noexcept {
    constexpr auto word = [](int w) {
      return static_cast<int>(0x01000100u + 0x02020202u * static_cast<unsigned>(w));
    };
    const Ints index = _mm256_inserti128_si256(set32(word(2 * I)), _mm_set1_epi32(word(2 * I + 1)), 1);
    return _mm256_shuffle_epi8(words, index);
  }
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(16) std::uint16_t d[k_lanes];
    const Ints mask = set8(0x0F), top = set8(0x30), x_sums = load_any(x.sum);
    Ints total[k_lanes];
    const std::uint8_t* row = p;
    for (int r = 0; r < k_lanes; ++r, row += stride) {
      d[r] = load_u16(row + 208);
      const Ints s = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 192)));
      Ints acc = sub32(zero(), sll32<5>(_mm256_madd_epi16(s, x_sums)));
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {  // of 128 elements
        const Ints scales = half == 0 ? _mm256_permute4x64_epi64(s, 0x44) : _mm256_permute4x64_epi64(s, 0xEE);
        const Ints a = load_any(row + 64 * half), b = load_any(row + 64 * half + 32);
        const Ints h = load_any(row + 128 + 32 * half);
        const std::uint8_t* q = x.q + 128 * half;
        const Ints w0 = and_or(sll32<4>(h), top, bit_and(a, mask));
        const Ints w1 = and_or(sll32<2>(h), top, bit_and(b, mask));
        const Ints w2 = and_or(h, top, bit_and(srl32<4>(a), mask));
        const Ints w3 = and_or(srl32<2>(h), top, bit_and(srl32<4>(b), mask));
        acc = dot16(acc, pairs(w0, load(q)), scale_runs<0>(scales));
        acc = dot16(acc, pairs(w1, load(q + 32)), scale_runs<1>(scales));
        acc = dot16(acc, pairs(w2, load(q + 64)), scale_runs<2>(scales));
        acc = dot16(acc, pairs(w3, load(q + 96)), scale_runs<3>(scales));
      }
      total[r] = acc;
    }
    const Floats d_w = mulf(halves_to_floats(d), broadcast_float(x.d));
    storef(sums, fma(to_float(Folded(total).both()), d_w, loadf(sums)));
  }
};

#endif

#ifdef SLUICE_AVX512_ROW_DOT

struct Q6KRowDot {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::uint16_t d[k_lanes];
    const Ints mask = set8(0x0F), top = set8(0x30);
    const Ints q[4] = {load_any(x.q), load_any(x.q + 64), load_any(x.q + 128), load_any(x.q + 192)};
    const __m256i x_sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sum));
    const Ints total = one_block(fold_rows<k_step_ahead_bytes, Q6K::k_block_bytes, 320>(
        p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          d[r] = load_u16(row + 208);
          const __m256i s =
              _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 192)));
          const Ints v0 = load_any(row), v1 = load_any(row + 64);
          const Ints h0 = load_twice(row + 128), h1 = load_twice(row + 160);
          const Ints w0 = and_or(rotate<4, 2>(h0), top, bit_and(v0, mask));
          const Ints w1 = and_or(rotate<0, -2>(h0), top, bit_and(srl32<4>(v0), mask));
          const Ints w2 = and_or(rotate<4, 2>(h1), top, bit_and(v1, mask));
          const Ints w3 = and_or(rotate<0, -2>(h1), top, bit_and(srl32<4>(v1), mask));
          Ints a = dot16(offset_of<5>(s, x_sums), pairs(w0, q[0]), scale_runs<0, 1, 2, 3>(s));
          a = dot16(a, pairs(w1, q[1]), scale_runs<4, 5, 6, 7>(s));
          a = dot16(a, pairs(w2, q[2]), scale_runs<8, 9, 10, 11>(s));
          return dot16(a, pairs(w3, q[3]), scale_runs<12, 13, 14, 15>(s));
        }));
    storef(sums, fma(to_float(total), mulf(halves_to_floats(d), broadcast_float(x.d)), loadf(sums)));
  }
};

template <>
struct RowDot<Q6K> : Q6KRowDot {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
