#pragma once

// Q5_0 and Q5_1: 32 elements of five bits with one scale.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = d * (q - 16); bit j of qh is the fifth bit of element j.
struct BlockQ5_0 {
  static constexpr std::size_t k_elements = 32;
  Half d;
  Le32 qh;
  std::uint8_t qs[16];
};

/// w = d * q + m
struct BlockQ5_1 {
  static constexpr std::size_t k_elements = 32;
  static constexpr bool k_has_min = true;
  Half d, m;
  Le32 qh;
  std::uint8_t qs[16];
};

inline void unpack(const BlockQ5_0& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  unpack_nibbles(block.qs, block.qh, 16, out.q);
}

inline void unpack(const BlockQ5_1& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  out.min = block.m.value();
  unpack_nibbles(block.qs, block.qh, 0, out.q);
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// Adds the fifth bits: element e of a row has bit e of the row's lane in `high`.
template <class Sink>
SLUICE_INLINE void put_five_bits(const Quad& q, Ints high, Sink& sink) noexcept {
  const Ints bytes[4] = {pick<0, 0, 0, 0>(high), pick<1, 1, 1, 1>(high), pick<2, 2, 2, 2>(high),
                         pick<3, 3, 3, 3>(high)};
  const Ints even = set32(0x08040201), odd = set32(static_cast<int>(0x80402010));
  put_nibbles(q, sink,
              [&](Ints v, int g) noexcept { return or_16_where(v, bytes[g / 2], g % 2 == 0 ? even : odd); });
}

struct Q5_0 {
  static constexpr int k_block_bytes = 22, k_max = 31, k_offset = 16, k_fifth_bits_at = 2;
  static constexpr bool k_wide = false, k_has_min = false;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    const Quad head = transpose(p, stride);
    d = half_to_float(head.v0);
    put_five_bits(transpose(p + 6, stride), bit_or(srl32<16>(head.v0), sll32<16>(head.v1)), sink);
  }
};

struct Q5_1 {
  static constexpr int k_block_bytes = 24, k_max = 31, k_offset = 0, k_fifth_bits_at = 4;
  static constexpr bool k_wide = false, k_has_min = true;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats& m) noexcept {
    const Quad head = transpose(p, stride);
    d = half_to_float(head.v0);
    m = half_to_float(srl32<16>(head.v0));
    put_five_bits(transpose(p + 8, stride), head.v1, sink);
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

template <>
struct RowDot<Q5_0> : NibbleRowDot<Q5_0> {};

template <>
struct RowDot<Q5_1> : NibbleRowDot<Q5_1> {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
