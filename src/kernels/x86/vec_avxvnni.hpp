#pragma once

// Vector vocabulary of the kernels for AVX-VNNI: AVX2 with the dot products of AVX-512 VNNI in 256 bits.
// Included by translation units compiled with those flags only; everything lies in an unnamed namespace.

#include "kernels/x86/vec_256.hpp"

namespace sluice::kernels::simd {
namespace {

/// dpbusd wants unsigned weights, so formats with full signed bytes are stored plus 128 and corrected
/// exactly.
constexpr int k_wide_bias = 128;

/// Adds the wide bias to signed bytes.
SLUICE_INLINE Ints bias_wide(Ints a) noexcept {
  return bit_xor(a, set8(-128));
}

/// Byte B of each lane in the shape that scaled_dot wants its scale: here a 32-bit integer.
template <int B>
SLUICE_INLINE Ints unsigned_scale(Ints v) noexcept {
  return pick<B, -1, -1, -1>(v);
}
template <int B>
SLUICE_INLINE Ints signed_scale(Ints v) noexcept {
  return _mm256_srai_epi32((pick<-1, -1, -1, B>(v)), 24);  // A macro without optimization.
}

constexpr bool k_row_dot = true;  ///< row_dot_fused.hpp serves one activation row.
constexpr bool k_row_dot_asks = false;
/// acc + the dot product of the 4 bytes of each lane, unsigned times signed.
SLUICE_INLINE Ints dot4(Ints acc, Ints w, Ints x) noexcept {
  return _mm256_dpbusd_avx_epi32(acc, w, x);
}
/// The same with the stored values of a format.
template <class Format>
SLUICE_INLINE Ints dot4_of(Ints acc, Ints w, Ints x) noexcept {
  return dot4(acc, w, x);
}
/// acc + a.lo * b.lo + a.hi * b.hi of the 16-bit halves of each lane.
SLUICE_INLINE Ints dot16(Ints acc, Ints a, Ints b) noexcept {
  return _mm256_dpwssd_avx_epi32(acc, a, b);
}

}  // namespace
}  // namespace sluice::kernels::simd
