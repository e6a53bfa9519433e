#pragma once

// Q4_0 and Q4_1: 32 elements of four bits with one scale.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = d * (q - 8)
struct BlockQ4_0 {
  static constexpr std::size_t k_elements = 32;
  Half d;
  std::uint8_t qs[16];
};

/// w = d * q + m
struct BlockQ4_1 {
  static constexpr std::size_t k_elements = 32;
  static constexpr bool k_has_min = true;
  Half d, m;
  std::uint8_t qs[16];
};

inline void unpack(const BlockQ4_0& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  unpack_nibbles(block.qs, 0, 8, out.q);
}

inline void unpack(const BlockQ4_1& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  out.min = block.m.value();
  unpack_nibbles(block.qs, 0, 0, out.q);
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

struct Q4_0 {
  static constexpr int k_block_bytes = 18, k_max = 15, k_offset = 8;
  static constexpr bool k_wide = false, k_has_min = false;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = half_to_float(transpose(p, stride).v0);
    put_nibbles(transpose(p + 2, stride), sink, [](Ints v, int) noexcept { return v; });
  }
};

struct Q4_1 {
  static constexpr int k_block_bytes = 20, k_max = 15, k_offset = 0;
  static constexpr bool k_wide = false, k_has_min = true;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats& m) noexcept {
    const Ints head = transpose(p, stride).v0;
    d = half_to_float(head);
    m = half_to_float(srl32<16>(head));
    put_nibbles(transpose(p + 4, stride), sink, [](Ints v, int) noexcept { return v; });
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

template <>
struct RowDot<Q4_0> : NibbleRowDot<Q4_0> {};

template <>
struct RowDot<Q4_1> : NibbleRowDot<Q4_1> {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
