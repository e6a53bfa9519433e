#pragma once

// IQ4_NL and IQ4_XS: four-bit digits of a table of 16 values.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {

/// w = d * k_iq4_values[q]
struct BlockIq4Nl {
  static constexpr std::size_t k_elements = 32;
  Half d;
  std::uint8_t qs[16];
};

/// w = d * (scale - 32) * k_iq4_values[q], per 32: low nibbles of the scales in scales_l, high pairs in
/// scales_h. Each 32 elements own 16 bytes of qs, low nibbles first.
struct BlockIq4Xs {
  static constexpr std::size_t k_elements = 256;
  Half d;
  Le16 scales_h;
  std::uint8_t scales_l[4];
  std::uint8_t qs[128];
};

inline void unpack(const BlockIq4Nl& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  look_up_nibbles(block.qs, k_iq4_values, out.q);
}

inline void unpack(const BlockIq4Xs& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    const int low = block.scales_l[g / 2] >> 4 * (g % 2) & 0xf;
    const int high = block.scales_h >> 2 * g & 3;
    out.scale[2 * g] = out.scale[2 * g + 1] = static_cast<std::int8_t>((low | high << 4) - 32);
    for (std::size_t l = 0; l < 16; ++l) {
      const std::uint8_t digits = block.qs[16 * g + l];
      out.q[32 * g + l] = k_iq4_values[digits & 0xf];
      out.q[32 * g + 16 + l] = k_iq4_values[digits >> 4];
    }
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// The 16 values of IQ4_NL and IQ4_XS (ggml's kvalues_iq4nl), signed.
SLUICE_INLINE Ints iq4_values() noexcept {
  alignas(16) static constexpr std::int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                         1,    13,   25,  38,  53,  69,  89,  113};
  return table16(values);
}

struct Iq4Nl {
  static constexpr int k_block_bytes = 18, k_max = 255, k_offset = k_wide_bias;
  static constexpr bool k_wide = true, k_has_min = false;
  static SLUICE_INLINE Ints table() noexcept { return bias_wide(iq4_values()); }
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = half_to_float(transpose(p, stride).v0);
    const Ints values = table();
    put_nibbles(transpose(p + 2, stride), sink, [&](Ints v, int) noexcept { return lookup(values, v); });
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

#ifdef SLUICE_AVX512_ROW_DOT

template <>
struct RowDot<Iq4Nl> : NibbleRowDot<Iq4Nl> {};

/// The signed values are biased to be unsigned; pairs of their products would not fit 16 bits.
struct Iq4XsRowDot {
  /// Signed byte k of a lane as a 32-bit number in part k.
  static SLUICE_INLINE Ints spread_signed(Ints v) noexcept {
    const auto part = [](int k) noexcept { return _mm_set1_epi32(static_cast<int>(0x00808080u) | k << 24); };
    Ints index = _mm512_castsi128_si512(part(0));
    index = _mm512_inserti32x4(index, part(1), 1);
    index = _mm512_inserti32x4(index, part(2), 2);
    index = _mm512_inserti32x4(index, part(3), 3);
    return _mm512_srai_epi32(_mm512_shuffle_epi8(v, index), 24);
  }
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::int32_t scales[2][k_lanes];
    const Quad head = transpose(p, stride);
    const Ints mask = set8(0x0F), top = set8(0x30), bias = set8(32);
    Ints high = srl32<16>(head.v0);  // eight 2-bit fields; spread two of them to each byte
    high = bit_and(bit_or(high, sll32<8>(high)), set32(0x00FF00FF));
    high = bit_and(bit_or(high, sll32<4>(high)), mask);
    const Ints even = sub8(and_or(sll32<4>(high), top, bit_and(head.v1, mask)), bias);
    const Ints odd = sub8(and_or(sll32<2>(high), top, bit_and(srl32<4>(head.v1), mask)), bias);
    const Ints all[2] = {bit_or(pick<0, -1, 1, -1>(even), pick<-1, 0, -1, 1>(odd)),
                         bit_or(pick<2, -1, 3, -1>(even), pick<-1, 2, -1, 3>(odd))};
    // A byte in the high half of 16 bits is 256 times its value; k_wide_bias is half of that.
    static_assert(k_wide_bias == 128);
    const Sums32 x_sums(x.sum);
    Ints low = zero();
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      store(scales[i], all[i]);
      low = dot16(low, sra16<1>(pick<-1, 0, -1, 1>(all[i])), x_sums.pair[2 * i]);
      low = dot16(low, sra16<1>(pick<-1, 2, -1, 3>(all[i])), x_sums.pair[2 * i + 1]);
    }

    const Ints table = bias_wide(iq4_values());
    const BlockNibbleOrder x0(x.q), x1(x.q + 128);
    const Ints total =
        one_block(fold_rows<k_step_ahead_bytes>(p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          const auto part = [&](Ints v, const BlockNibbleOrder& order, int i) noexcept {
            const Ints dot = dot4(dot4(zero(), lookup(table, bit_and(v, mask)), order.low),
                                  lookup(table, bit_and(srl32<4>(v), mask)), order.high);
            return mullo32(dot, spread_signed(broadcast32(scales[i] + r)));
          };
          return add32(part(load_any(row + 8), x0, 0), part(load_any(row + 72), x1, 1));
        }));
    const Ints exact = _mm512_sub_epi32(total, low);
    const Floats d = mulf(half_to_float(head.v0), broadcast_float(x.d));
    storef(sums, fma(to_float(exact), d, loadf(sums)));
  }
};

template <>
struct RowDot<Iq4Xs> : Iq4XsRowDot {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
