#pragma once

// Formats of 256 elements with scaled sub-blocks (K-quants, IQ4_XS): how k_lanes rows of one block become a
// panel. Include after pack_q32.hpp. Layouts are those of the GGUF blocks.
//
// The exact integer of a block is sum over sub-blocks s of scale_s * (sum of (stored - offset) * q). The
// offset, or the minimum of Q2_K, Q4_K and Q5_K, needs only the sums of q over each 16 elements: `pair` p
// holds, per row, the two 16-bit factors of sums 2p and 2p + 1.

namespace sluice::kernels::simd {
namespace {

struct alignas(64) KPanel {
  std::uint8_t w[64 * k_vec_bytes];      ///< 64 groups of 4 elements.
  std::uint8_t scale[16 * k_vec_bytes];  ///< Per sub-block, as unsigned_scale / signed_scale make them.
  std::uint8_t pair[8 * k_vec_bytes];    ///< Factors of the sums of q.
  float d[k_lanes];
  float d_min[k_lanes];
};

/// The dwords of 32 bytes per row, to be indexed in unrolled loops.
struct Eight {
  Ints at[8];
  explicit SLUICE_INLINE Eight(const Octet& o) noexcept
      : at{o.low.v0, o.low.v1, o.low.v2, o.low.v3, o.high.v0, o.high.v1, o.high.v2, o.high.v3} {}
};

enum class SumUse {
  none,    ///< Signed values: the sums are not needed.
  offset,  ///< pair corrects the integer of the block.
  min,     ///< pair is a second integer, scaled by d_min and subtracted.
};

/// Scales of sub-blocks First .. First + 3 from the bytes of v.
template <int First>
SLUICE_INLINE void store_unsigned_scales(Ints v, KPanel& panel) noexcept {
  std::uint8_t* to = panel.scale + First * k_vec_bytes;
  store(to, unsigned_scale<0>(v));
  store(to + k_vec_bytes, unsigned_scale<1>(v));
  store(to + 2 * k_vec_bytes, unsigned_scale<2>(v));
  store(to + 3 * k_vec_bytes, unsigned_scale<3>(v));
}

/// Signed scales of four 16-element sub-blocks, and the pairs that correct for the offset.
template <int First, int Offset>
SLUICE_INLINE void store_signed_scales16(Ints v, KPanel& panel) noexcept {
  std::uint8_t* to = panel.scale + First * k_vec_bytes;
  store(to, signed_scale<0>(v));
  store(to + k_vec_bytes, signed_scale<1>(v));
  store(to + 2 * k_vec_bytes, signed_scale<2>(v));
  store(to + 3 * k_vec_bytes, signed_scale<3>(v));
  std::uint8_t* pair = panel.pair + First / 2 * k_vec_bytes;
  store(pair, mullo16(sra16<8>(pick<-1, 0, -1, 1>(v)), set16(-Offset)));
  store(pair + k_vec_bytes, mullo16(sra16<8>(pick<-1, 2, -1, 3>(v)), set16(-Offset)));
}

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

struct Q6K {
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

struct Iq4Xs {
  static constexpr int k_block_bytes = 136, k_max = 255, k_sub_groups = 8;
  static constexpr bool k_wide = true;
  static constexpr SumUse k_sums = k_wide_bias == 0 ? SumUse::none : SumUse::offset;

  /// Scales of sub-blocks 2B and 2B + 1 from byte B of `even` and `odd`.
  template <int B>
  static SLUICE_INLINE void scales(Ints even, Ints odd, KPanel& panel) noexcept {
    store(panel.scale + 2 * B * k_vec_bytes, signed_scale<B>(even));
    store(panel.scale + (2 * B + 1) * k_vec_bytes, signed_scale<B>(odd));
    const Ints factor = set16(-k_wide_bias);
    store(panel.pair + 2 * B * k_vec_bytes, mullo16(sra16<8>(pick<-1, B, -1, B>(even)), factor));
    store(panel.pair + (2 * B + 1) * k_vec_bytes, mullo16(sra16<8>(pick<-1, B, -1, B>(odd)), factor));
  }

  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, KPanel& panel,
                                 Sink sink) noexcept {
    const Quad head = transpose(p, stride);
    storef(panel.d, half_to_float(head.v0));
    const Ints four = set8(0x0F), bias = set8(32);
    Ints high = srl32<16>(head.v0);  // eight 2-bit fields; spread two of them to each byte
    high = bit_and(bit_or(high, sll32<8>(high)), set32(0x00FF00FF));
    high = bit_and(bit_or(high, sll32<4>(high)), four);
    const Ints even = sub8(and_or(sll32<4>(high), set8(0x30), bit_and(head.v1, four)), bias);
    const Ints odd = sub8(and_or(sll32<2>(high), set8(0x30), bit_and(srl32<4>(head.v1), four)), bias);
    scales<0>(even, odd, panel);
    scales<1>(even, odd, panel);
    scales<2>(even, odd, panel);
    scales<3>(even, odd, panel);
    const Ints table = bias_wide(iq4_values());
    const auto look = [&](Ints v, int) noexcept { return lookup(table, v); };
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Octet o = transpose32(p + 8 + 32 * c, stride);
      put_nibbles(o.low, ShiftedSink<Sink>{sink, 16 * c}, look);
      put_nibbles(o.high, ShiftedSink<Sink>{sink, 16 * c + 8}, look);
    }
  }
};

}  // namespace
}  // namespace sluice::kernels::simd
