#pragma once

// Q2_0: two bits an element with one scale, in blocks of 64 and, from a fork under the same type id, of 128.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = d * (q - 1): -1, 0 and 1, and 2, which a block can say too. Element j is bit pair j % 4 of byte j / 4.
template <std::size_t Elements>
struct BlockCrumbs {
  static constexpr std::size_t k_elements = Elements, k_part_elements = 32;
  Half d;
  std::uint8_t qs[Elements / 4];
};
using BlockQ2_0 = BlockCrumbs<64>;
using BlockQ2_0G128 = BlockCrumbs<128>;

template <std::size_t Elements>
void unpack(const BlockCrumbs<Elements>& block, std::size_t part, UnpackedPart<32>& out) noexcept {
  out.scale = block.d.value();
  for (std::size_t j = 0; j < 32; ++j) {
    out.q[j] = static_cast<std::int8_t>((block.qs[8 * part + j / 4] >> 2 * (j % 4) & 3) - 1);
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

template <int Elements>
struct Crumbs {
  static constexpr int k_block_bytes = 2 + Elements / 4, k_block_elements = Elements, k_max = 3, k_offset = 1;
  static constexpr bool k_wide = false, k_has_min = false;

  /// The four bit pairs of byte B of each lane, one a byte.
  template <int B>
  static SLUICE_INLINE Ints spread(Ints v) noexcept {
    const Ints byte = pick<B, -1, -1, -1>(v);
    Ints w = bit_and(byte, set32(0x03));
    w = and_or(sll32<6>(byte), set32(0x0300), w);
    w = and_or(sll32<12>(byte), set32(0x030000), w);
    return and_or(sll32<18>(byte), set32(0x03000000), w);
  }
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink,
                                 Floats (&scales)[Elements / 32]) noexcept {
    const Floats d = half_to_float(transpose(p, stride).v0);
#pragma GCC unroll 4
    for (int i = 0; i < Elements / 32; ++i) scales[i] = d;
#pragma GCC unroll 2
    for (int piece = 0; piece < Elements / 64; ++piece) {  // of 16 bytes
      const Quad q = transpose(p + 2 + 16 * piece, stride);
      const Ints dwords[4] = {q.v0, q.v1, q.v2, q.v3};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int group = 16 * piece + 4 * i;
        sink.put(group, spread<0>(dwords[i]));
        sink.put(group + 1, spread<1>(dwords[i]));
        sink.put(group + 2, spread<2>(dwords[i]));
        sink.put(group + 3, spread<3>(dwords[i]));
      }
    }
  }
};
using Q2_0 = Crumbs<64>;
using Q2_0G128 = Crumbs<128>;

#ifdef SLUICE_AVX512_ROW_DOT

template <int Elements>
struct RowDot<Crumbs<Elements>> : FusedRowDot<Crumbs<Elements>> {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
