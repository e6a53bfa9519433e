#pragma once

// Vector vocabulary of the kernels for AVX2 + FMA + F16C. Included by translation units compiled with those
// flags only; everything lies in an unnamed namespace.

#include "kernels/x86/vec_256.hpp"

namespace sluice::kernels::simd {
namespace {

/// Full signed bytes stay signed here: two products of 255 * 127 would saturate maddubs.
constexpr int k_wide_bias = 0;

/// Adds the wide bias to signed bytes.
SLUICE_INLINE Ints bias_wide(Ints a) noexcept {
  return a;
}
/// Byte B of each lane in the shape that scaled_dot wants its scale: here the same 16-bit integer twice.
template <int B>
SLUICE_INLINE Ints unsigned_scale(Ints v) noexcept {
  return pick<B, -1, B, -1>(v);
}
template <int B>
SLUICE_INLINE Ints signed_scale(Ints v) noexcept {
  return sra16<8>(pick<-1, B, -1, B>(v));
}

constexpr bool k_row_dot = true;  ///< For the formats that have a RowDot.
constexpr bool k_row_dot_asks = false;
/// acc + a.lo * b.lo + a.hi * b.hi of the 16-bit halves of each lane.
SLUICE_INLINE Ints dot16(Ints acc, Ints a, Ints b) noexcept {
  return add32(acc, _mm256_madd_epi16(a, b));
}

/// acc + the dot product of the 4 bytes of each lane, unsigned times signed; two products must fit 16 bits.
SLUICE_INLINE Ints dot4(Ints acc, Ints w, Ints x) noexcept {
  return dot16(acc, _mm256_maddubs_epi16(w, x), set16(1));
}

/// acc + the dot product of stored values of a format, which are signed where it is wide.
template <class Format>
SLUICE_INLINE Ints dot4_of(Ints acc, Ints w, Ints x) noexcept {
  if constexpr (Format::k_wide) {
    return dot16(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)), set16(1));
  } else {
    return dot4(acc, w, x);
  }
}

/// Groups whose maddubs results can be added in 16 bits: each is at most 2 * max * 127.
template <class Format>
constexpr int safe_groups() noexcept {
  const int n = 32767 / (2 * Format::k_max * 127);
  return n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

/// acc[p][t] += scale[p] * the dot products of Groups consecutive 4-element groups: those of panel p, whose
/// bytes start at w + p * panel_bytes, with those of activation row t. The scale is a pair of equal 16-bit
/// integers.
template <class Format, int Groups, int P, int T>
SLUICE_INLINE void scaled_dot(const std::uint8_t* w, std::size_t panel_bytes, const Ints (&scale)[P],
                              const std::int8_t* const (&q)[T], Ints (&acc)[P][T]) noexcept {
  static_assert(P == 1);
  static_cast<void>(panel_bytes);
  if constexpr (Format::k_wide) {
#pragma GCC unroll 8
    for (int g = 0; g < Groups; ++g) {
      const Ints wg = load(w + g * k_vec_bytes);
      const Ints magnitude = _mm256_abs_epi8(wg);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const Ints x = _mm256_sign_epi8(broadcast32(q[t] + 4 * g), wg);
        acc[0][t] = dot16(acc[0][t], _mm256_maddubs_epi16(magnitude, x), scale[0]);
      }
    }
  } else {
    constexpr int safe = safe_groups<Format>();
    constexpr int run = safe < Groups ? safe : Groups;
#pragma GCC unroll 8
    for (int g0 = 0; g0 < Groups; g0 += run) {
      Ints part[T];
#pragma GCC unroll 8
      for (int g = g0; g < g0 + run; ++g) {
        const Ints wg = load(w + g * k_vec_bytes);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const Ints product = _mm256_maddubs_epi16(wg, broadcast32(q[t] + 4 * g));
          part[t] = g == g0 ? product : _mm256_add_epi16(part[t], product);
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) acc[0][t] = dot16(acc[0][t], part[t], scale[0]);
    }
  }
}

/// acc[p][t] += the dot products.
template <class Format, int Groups, int P, int T>
SLUICE_INLINE void dot(const std::uint8_t* w, std::size_t panel_bytes, const std::int8_t* const (&q)[T],
                       Ints (&acc)[P][T]) noexcept {
  scaled_dot<Format, Groups, P, T>(w, panel_bytes, {set16(1)}, q, acc);
}

}  // namespace
}  // namespace sluice::kernels::simd
