#pragma once

// Q1_0: one bit an element.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = d where the element's bit is set, else -d. Element j is bit j % 8 of byte j / 8.
struct BlockQ1_0 {
  static constexpr std::size_t k_elements = 128, k_part_elements = 32;
  Half d;
  std::uint8_t qs[16];
};

inline void unpack(const BlockQ1_0& block, std::size_t part, UnpackedPart<32>& out) noexcept {
  out.scale = block.d.value();
  for (std::size_t j = 0; j < 32; ++j) {
    out.q[j] = static_cast<std::int8_t>((block.qs[4 * part + j / 8] >> j % 8 & 1) != 0 ? 1 : -1);
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// Stored values are 0 and 16, eight times the element plus 8, so the scale is an eighth: an exact step.
struct Q1_0 {
  static constexpr int k_block_bytes = 18, k_block_elements = 128, k_max = 16, k_offset = 8;
  static constexpr bool k_wide = false, k_has_min = false;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink,
                                 Floats (&scales)[4]) noexcept {
    const Floats d = mulf(half_to_float(transpose(p, stride).v0), setf(0.125f));
    const Quad q = transpose(p + 2, stride);
    const Ints parts[4] = {q.v0, q.v1, q.v2, q.v3};
    const Ints even = set32(0x08040201), odd = set32(static_cast<int>(0x80402010));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      scales[i] = d;
      const Ints v = parts[i];
      const Ints bytes[4] = {pick<0, 0, 0, 0>(v), pick<1, 1, 1, 1>(v), pick<2, 2, 2, 2>(v),
                             pick<3, 3, 3, 3>(v)};
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g)
        sink.put(8 * i + g, or_16_where(zero(), bytes[g / 2], g % 2 == 0 ? even : odd));
    }
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

template <>
struct RowDot<Q1_0> : FusedRowDot<Q1_0> {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
