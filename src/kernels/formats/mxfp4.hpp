#pragma once

// MXFP4: FP4 with a shared power of two.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {

/// OCP microscaling FP4: w = 2^(e - 128) * k_fp4_values[q], the table holding twice the E2M1 value.
struct BlockMxfp4 {
  static constexpr std::size_t k_elements = 32;
  std::uint8_t e;
  std::uint8_t qs[16];
};

/// 2^(e - 128): half of the E8M0 scale 2^(e - 127), because the FP4 table is doubled. Exponents 0 and 1 give
/// subnormal floats. The format's NaN (255) is taken as a number, as ggml does.
inline float half_of_e8m0(std::uint8_t e) noexcept {
  const std::uint32_t bits = e < 2 ? 0x00200000u << e : (std::uint32_t{e} - 1) << 23;
  return std::bit_cast<float>(bits);
}

inline void unpack(const BlockMxfp4& block, Unpacked32& out) noexcept {
  out.scale = half_of_e8m0(block.e);
  look_up_nibbles(block.qs, k_fp4_values, out.q);
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// OCP microscaling FP4 (E2M1) with a shared power of two; the table holds twice the value plus 12.
struct Mxfp4 {
  static constexpr int k_block_bytes = 17, k_max = 24, k_offset = 12;
  static constexpr bool k_wide = false, k_has_min = false, k_exponent_scale = true;
  static SLUICE_INLINE Ints table() noexcept {
    alignas(16) static constexpr std::int8_t values[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                           12, 11, 10, 9,  8,  6,  4,  0};
    return table16(values);
  }
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = exponent_to_float(bit_and(transpose(p, stride).v0, set32(0xFF)));
    const Ints values = table();
    put_nibbles(transpose(p + 1, stride), sink, [&](Ints v, int) noexcept { return lookup(values, v); });
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

template <>
struct RowDot<Mxfp4> : NibbleRowDot<Mxfp4> {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
