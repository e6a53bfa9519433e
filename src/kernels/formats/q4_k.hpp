#pragma once

// Q4_K and Q5_K: four and five bits with the same scales and minimums of six bits.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = (d * scale) * q - (dmin * min), per 32; 6-bit scales and mins packed in 12 bytes (unpack_scales_6bit).
/// Each 64 elements own 32 bytes of qs: low nibbles first.
struct BlockQ4K {
  static constexpr std::size_t k_elements = 256;
  static constexpr bool k_has_min = true;
  Half d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qs[128];
};

/// As Q4_K, with bit g of qh[l] as the fifth bit of element 32 g + l.
struct BlockQ5K {
  static constexpr std::size_t k_elements = 256;
  static constexpr bool k_has_min = true;
  Half d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qh[32];
  std::uint8_t qs[128];
};

/// The eight 6-bit scales and mins of Q4_K and Q5_K. Bytes 0-3 and 4-7 hold the first four scales and mins in
/// their low six bits; the other four have their low nibbles in bytes 8-11 (scale low, min high) and their
/// top two bits in the top bits of bytes 0-3 and 4-7. Each is written twice, once per 16 elements.
inline void unpack_scales_6bit(const std::uint8_t (&packed)[12], std::int8_t* scale,
                               std::uint8_t* min) noexcept {
  for (std::size_t g = 0; g < 8; ++g) {
    unsigned s, m;
    if (g < 4) {
      s = packed[g] & 0x3f;
      m = packed[g + 4] & 0x3f;
    } else {
      s = (packed[g + 4] & 0xf) | (packed[g - 4] >> 6) << 4;
      m = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
    }
    scale[2 * g] = scale[2 * g + 1] = static_cast<std::int8_t>(s);
    min[2 * g] = min[2 * g + 1] = static_cast<std::uint8_t>(m);
  }
}

/// The 256 nibbles of Q4_K and Q5_K: every 32 bytes are 32 elements of low nibbles, then 32 of high ones.
inline void unpack_nibbles_by_64(const std::uint8_t (&qs)[128], std::int8_t* q) noexcept {
  for (std::size_t g = 0; g < 4; ++g) {
    for (std::size_t l = 0; l < 32; ++l) {
      q[64 * g + l] = static_cast<std::int8_t>(qs[32 * g + l] & 0xf);
      q[64 * g + 32 + l] = static_cast<std::int8_t>(qs[32 * g + l] >> 4);
    }
  }
}

inline void unpack(const BlockQ4K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  out.d_min = block.dmin.value();
  unpack_scales_6bit(block.scales, out.scale, out.min);
  unpack_nibbles_by_64(block.qs, out.q);
}

inline void unpack(const BlockQ5K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  out.d_min = block.dmin.value();
  unpack_scales_6bit(block.scales, out.scale, out.min);
  unpack_nibbles_by_64(block.qs, out.q);
  for (std::size_t g = 0; g < 8; ++g) {
    for (std::size_t l = 0; l < 32; ++l) {
      out.q[32 * g + l] = static_cast<std::int8_t>(out.q[32 * g + l] | (block.qh[l] >> g & 1) << 4);
    }
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// Both factors of a pair equal: one minimum per 32 elements.
template <int First>
SLUICE_INLINE void store_mins32(Ints v, KPanel& panel) noexcept {
  std::uint8_t* to = panel.pair + First * k_vec_bytes;
  store(to, pick<0, -1, 0, -1>(v));
  store(to + k_vec_bytes, pick<1, -1, 1, -1>(v));
  store(to + 2 * k_vec_bytes, pick<2, -1, 2, -1>(v));
  store(to + 3 * k_vec_bytes, pick<3, -1, 3, -1>(v));
}

/// The first 16 bytes of Q4_K and Q5_K: d, d_min and 12 bytes with eight 6-bit scales and minimums.
SLUICE_INLINE void unpack_k4_head(const Quad& head, KPanel& panel) noexcept {
  storef(panel.d, half_to_float(head.v0));
  storef(panel.d_min, half_to_float(srl32<16>(head.v0)));
  const Ints six = set8(0x3F), four = set8(0x0F), top = set8(0x30);
  store_unsigned_scales<0>(bit_and(head.v1, six), panel);
  store_unsigned_scales<4>(and_or(srl32<2>(head.v1), top, bit_and(head.v3, four)), panel);
  store_mins32<0>(bit_and(head.v2, six), panel);
  store_mins32<4>(and_or(srl32<2>(head.v2), top, bit_and(srl32<4>(head.v3), four)), panel);
}

struct Q4K {
  static constexpr std::size_t k_next_tile_ahead = 3;
  static constexpr int k_block_bytes = 144, k_max = 15, k_sub_groups = 8;
  static constexpr bool k_wide = false;
  static constexpr SumUse k_sums = SumUse::min;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, KPanel& panel,
                                 Sink sink) noexcept {
    unpack_k4_head(transpose(p, stride), panel);
    const Ints mask = set8(0x0F);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {  // low nibbles: sub-block 2c, high nibbles: 2c + 1
      const Eight v(transpose32(p + 16 + 32 * c, stride));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        sink.put(16 * c + g, bit_and(v.at[g], mask));
        sink.put(16 * c + 8 + g, bit_and(srl32<4>(v.at[g]), mask));
      }
    }
  }
};

struct Q5K {
  static constexpr int k_block_bytes = 176, k_max = 31, k_sub_groups = 8;
  static constexpr bool k_wide = false;
  static constexpr SumUse k_sums = SumUse::min;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, KPanel& panel,
                                 Sink sink) noexcept {
    unpack_k4_head(transpose(p, stride), panel);
    const Ints mask = set8(0x0F), fifth = set8(0x10);
    const Eight high(transpose32(p + 16, stride));  // bit s: fifth bit of sub-block s
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Eight v(transpose32(p + 48 + 32 * c, stride));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        const Ints h = high.at[g];
        const Ints low_bit = c == 0 ? sll32<4>(h) : c == 1 ? sll32<2>(h) : c == 2 ? h : srl32<2>(h);
        const Ints high_bit = c == 0   ? sll32<3>(h)
                              : c == 1 ? sll32<1>(h)
                              : c == 2 ? srl32<1>(h)
                                       : srl32<3>(h);
        sink.put(16 * c + g, and_or(low_bit, fifth, bit_and(v.at[g], mask)));
        sink.put(16 * c + 8 + g, and_or(high_bit, fifth, bit_and(srl32<4>(v.at[g]), mask)));
      }
    }
  }
};

#ifdef SLUICE_ROW_DOT_256

template <class Format, bool HasFifthBit>
struct K4RowDot256 {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(32) std::int32_t scales[8][k_lanes];  // pairs of equal 16-bit integers
    const Quad head = transpose(p, stride);
    const Ints six = set8(0x3F), mask = set8(0x0F), top = set8(0x30), fifth = set8(0x10);
    const Ints scale[2] = {bit_and(head.v1, six), and_or(srl32<2>(head.v1), top, bit_and(head.v3, mask))};
    const Ints min[2] = {bit_and(head.v2, six),
                         and_or(srl32<2>(head.v2), top, bit_and(srl32<4>(head.v3), mask))};
    Ints low = zero();
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      store(scales[4 * i], pick<0, -1, 0, -1>(scale[i]));
      store(scales[4 * i + 1], pick<1, -1, 1, -1>(scale[i]));
      store(scales[4 * i + 2], pick<2, -1, 2, -1>(scale[i]));
      store(scales[4 * i + 3], pick<3, -1, 3, -1>(scale[i]));
      low = dot16(low, pick<0, -1, 0, -1>(min[i]), broadcast32(x.sum + 16 * i));
      low = dot16(low, pick<1, -1, 1, -1>(min[i]), broadcast32(x.sum + 16 * i + 4));
      low = dot16(low, pick<2, -1, 2, -1>(min[i]), broadcast32(x.sum + 16 * i + 8));
      low = dot16(low, pick<3, -1, 3, -1>(min[i]), broadcast32(x.sum + 16 * i + 12));
    }
    Ints total[k_lanes];
    const std::uint8_t* row = p;
    for (int r = 0; r < k_lanes; ++r, row += stride) {
      const Ints high = HasFifthBit ? load_any(row + 16) : zero();  // bit s: fifth bit of sub-block s
      Ints acc = zero();
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const Ints v = load_any(row + (HasFifthBit ? 48 : 16) + 32 * c);
        Ints a = bit_and(v, mask), b = bit_and(srl32<4>(v), mask);
        if constexpr (HasFifthBit) {
          a = and_or(c == 0   ? sll32<4>(high)
                     : c == 1 ? sll32<2>(high)
                     : c == 2 ? high
                              : srl32<2>(high),
                     fifth, a);
          b = and_or(c == 0   ? sll32<3>(high)
                     : c == 1 ? sll32<1>(high)
                     : c == 2 ? srl32<1>(high)
                              : srl32<3>(high),
                     fifth, b);
        }
        acc = dot16(acc, pairs(a, load(x.q + 64 * c)), broadcast32(&scales[2 * c][r]));
        acc = dot16(acc, pairs(b, load(x.q + 64 * c + 32)), broadcast32(&scales[2 * c + 1][r]));
      }
      total[r] = acc;
    }
    const Floats d_x = broadcast_float(x.d);
    const Floats y = fma(to_float(Folded(total).both()), mulf(half_to_float(head.v0), d_x), loadf(sums));
    storef(sums, fnma(to_float(low), mulf(half_to_float(srl32<16>(head.v0)), d_x), y));
  }
};

template <>
struct RowDot<Q4K> : K4RowDot256<Q4K, false> {};

template <>
struct RowDot<Q5K> : K4RowDot256<Q5K, true> {};

#endif

#ifdef SLUICE_AVX512_ROW_DOT

/// Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scales and minimums.
template <class Format, bool HasFifthBit>
struct K4RowDot {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::int32_t scales[2][k_lanes];
    const Quad head = transpose(p, stride);
    const Floats d_x = broadcast_float(x.d);
    const Ints six = set8(0x3F), mask = set8(0x0F), top = set8(0x30), fifth = set8(0x10);
    store(scales[0], bit_and(head.v1, six));
    store(scales[1], and_or(srl32<2>(head.v1), top, bit_and(head.v3, mask)));
    const Ints mins[2] = {bit_and(head.v2, six),
                          and_or(srl32<2>(head.v2), top, bit_and(srl32<4>(head.v3), mask))};
    const Sums32 x_sums(x.sum);
    Ints low = zero();
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      low = dot16(low, pick<0, -1, 1, -1>(mins[i]), x_sums.pair[2 * i]);
      low = dot16(low, pick<2, -1, 3, -1>(mins[i]), x_sums.pair[2 * i + 1]);
    }
    const NibbleOrder order(x.q);
    constexpr int tile_block_bytes = HasFifthBit ? 0 : Format::k_block_bytes;
    const Ints total = one_block(fold_rows<k_step_ahead_bytes, tile_block_bytes, k_step_ahead_bytes>(
        p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          const std::uint8_t* q = row + (HasFifthBit ? 48 : 16);
          const Ints v0 = load_any(q), v1 = load_any(q + 64);
          Ints w[4] = {bit_and(v0, mask), bit_and(srl32<4>(v0), mask), bit_and(v1, mask),
                       bit_and(srl32<4>(v1), mask)};
          if constexpr (HasFifthBit) {  // bit s of a byte belongs to sub-block s
            const Ints high = load_twice(row + 16);
            w[0] = and_or(rotate<4, 2>(high), fifth, w[0]);
            w[1] = and_or(rotate<3, 1>(high), fifth, w[1]);
            w[2] = and_or(rotate<0, -2>(high), fifth, w[2]);
            w[3] = and_or(rotate<-1, -3>(high), fifth, w[3]);
          }
          const Ints s0 = broadcast32(scales[0] + r), s1 = broadcast32(scales[1] + r);
          Ints a = dot16(zero(), pairs(w[0], order.q[0]), spread<0, 2>(s0));
          a = dot16(a, pairs(w[1], order.q[1]), spread<1, 3>(s0));
          a = dot16(a, pairs(w[2], order.q[2]), spread<0, 2>(s1));
          return dot16(a, pairs(w[3], order.q[3]), spread<1, 3>(s1));
        }));
    const Floats y = fma(to_float(total), mulf(half_to_float(head.v0), d_x), loadf(sums));
    storef(sums, fnma(to_float(low), mulf(half_to_float(srl32<16>(head.v0)), d_x), y));
  }
};

template <>
struct RowDot<Q4K> : K4RowDot<Q4K, false> {};

template <>
struct RowDot<Q5K> : K4RowDot<Q5K, true> {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
