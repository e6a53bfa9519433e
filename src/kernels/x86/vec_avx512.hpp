#pragma once

// Vector vocabulary of the kernels for AVX-512 (F, BW, DQ, VL, VNNI). Included by translation units compiled
// with those flags only; everything lies in an unnamed namespace, so no other unit can end up with this code.

// GCC 12 calls the deliberately undefined values inside its own AVX-512 header uninitialized (GCC bug
// 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/simd/inline.hpp"

namespace sluice::kernels::simd {
namespace {

constexpr int k_lanes = 16;  ///< 32-bit lanes of a vector; also the weight rows of a panel.
constexpr int k_vec_bytes = 64;
constexpr int k_panels = 2;      ///< Panels that share the loads of an activation.
constexpr int k_x_tile = 4;      ///< Activation rows that share the loads of a panel.
constexpr int k_float_rows = 4;  ///< Register tile of the float kernels.
constexpr int k_float_x = 6;
/// dpbusd wants unsigned weights, so formats with full signed bytes are stored plus 128 and corrected
/// exactly.
constexpr int k_wide_bias = 128;

using Ints = __m512i;
using Floats = __m512;

SLUICE_INLINE Ints load(const void* p) noexcept {
  return _mm512_load_si512(p);
}
SLUICE_INLINE void store(void* p, Ints v) noexcept {
  _mm512_store_si512(p, v);
}
SLUICE_INLINE Ints zero() noexcept {
  return _mm512_setzero_si512();
}
SLUICE_INLINE Ints set8(int v) noexcept {
  return _mm512_set1_epi8(static_cast<char>(v));
}
SLUICE_INLINE Ints set16(int v) noexcept {
  return _mm512_set1_epi16(static_cast<short>(v));
}
SLUICE_INLINE Ints set32(int v) noexcept {
  return _mm512_set1_epi32(v);
}
SLUICE_INLINE Ints broadcast128(__m128i v) noexcept {
  return _mm512_broadcast_i32x4(v);
}
/// The 16 bytes at p (16-byte aligned) in every 128-bit part.
SLUICE_INLINE Ints table16(const std::int8_t* p) noexcept {
  return broadcast128(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
/// The 4 bytes at p in every lane.
SLUICE_INLINE Ints broadcast32(const void* p) noexcept {
  int v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

SLUICE_INLINE Ints bit_and(Ints a, Ints b) noexcept {
  return _mm512_and_si512(a, b);
}
SLUICE_INLINE Ints bit_or(Ints a, Ints b) noexcept {
  return _mm512_or_si512(a, b);
}
SLUICE_INLINE Ints bit_xor(Ints a, Ints b) noexcept {
  return _mm512_xor_si512(a, b);
}
/// (a & mask) | b.
SLUICE_INLINE Ints and_or(Ints a, Ints mask, Ints b) noexcept {
  return _mm512_ternarylogic_epi32(a, mask, b, 0xEA);
}
template <int N>
SLUICE_INLINE Ints srl32(Ints a) noexcept {
  return _mm512_srli_epi32(a, N);
}
template <int N>
SLUICE_INLINE Ints sll32(Ints a) noexcept {
  return _mm512_slli_epi32(a, N);
}
SLUICE_INLINE Ints add32(Ints a, Ints b) noexcept {
  return _mm512_add_epi32(a, b);
}
SLUICE_INLINE Ints sub32(Ints a, Ints b) noexcept {
  return _mm512_sub_epi32(a, b);
}
SLUICE_INLINE Ints sub8(Ints a, Ints b) noexcept {
  return _mm512_sub_epi8(a, b);
}
SLUICE_INLINE Ints mullo16(Ints a, Ints b) noexcept {
  return _mm512_mullo_epi16(a, b);
}
/// -N * a.
template <int N>
SLUICE_INLINE Ints negative_multiple(Ints a) noexcept {
  constexpr int shift = __builtin_ctz(N);
  if constexpr (N == 1 << shift) return _mm512_sub_epi32(zero(), _mm512_slli_epi32(a, shift));
  return _mm512_mullo_epi32(a, set32(-N));
}
SLUICE_INLINE Ints mullo32(Ints a, Ints b) noexcept {
  return _mm512_mullo_epi32(a, b);
}
template <int N>
SLUICE_INLINE Ints sra16(Ints a) noexcept {
  return _mm512_srai_epi16(a, N);
}
/// Looks up each byte of `index` (0..15) in a 16-byte table broadcast to all 128-bit parts.
SLUICE_INLINE Ints lookup(Ints table, Ints index) noexcept {
  return _mm512_shuffle_epi8(table, index);
}
/// Adds the wide bias to signed bytes.
SLUICE_INLINE Ints bias_wide(Ints a) noexcept {
  return _mm512_xor_si512(a, set8(-128));
}
/// Adds 16 to the bytes of a (whose bit 4 is clear) where b & bit is not zero.
SLUICE_INLINE Ints or_16_where(Ints a, Ints b, Ints bit) noexcept {
  return _mm512_mask_add_epi8(a, _mm512_test_epi8_mask(b, bit), a, set8(16));
}
/// a - b where c & bit is not zero, else a + b, of bytes; `bit` has one bit per byte.
SLUICE_INLINE Ints sub_or_add8(Ints a, Ints b, Ints c, Ints bit) noexcept {
  return _mm512_mask_sub_epi8(_mm512_add_epi8(a, b), _mm512_test_epi8_mask(c, bit), a, b);
}

SLUICE_INLINE Floats to_float(Ints a) noexcept {
  return _mm512_cvtepi32_ps(a);
}
SLUICE_INLINE Floats as_float(Ints a) noexcept {
  return _mm512_castsi512_ps(a);
}
/// The f16 in the low half of each lane.
SLUICE_INLINE Floats half_to_float(Ints a) noexcept {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}
/// 2^(e - 128) for the exponent byte e of an MXFP4 block in each lane, subnormal for e < 2.
SLUICE_INLINE Floats exponent_to_float(Ints e) noexcept {
  const Ints normal = _mm512_slli_epi32(_mm512_sub_epi32(e, set32(1)), 23);
  const Ints small = _mm512_sllv_epi32(set32(0x00200000), e);
  return as_float(_mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(e, set32(2)), normal, small));
}

/// Half of the unsigned E4M3 number in each lane (NVFP4): bias 7, top bit unused, 0x7F counts as 0.
SLUICE_INLINE Floats half_of_ue4m3(Ints v) noexcept {
  const Ints bits = bit_and(v, set32(0x7F));
  const Ints normal = add32(sll32<20>(bits), set32(119 << 23));
  const Ints small = _mm512_castps_si512(_mm512_mul_ps(to_float(bits), _mm512_set1_ps(0x1p-10f)));
  const Ints half = _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(bits, set32(8)), normal, small);
  return as_float(_mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(v, set32(0x7F)), half));
}

SLUICE_INLINE Floats loadf(const float* p) noexcept {
  return _mm512_loadu_ps(p);
}
SLUICE_INLINE void storef(float* p, Floats v) noexcept {
  _mm512_storeu_ps(p, v);
}
SLUICE_INLINE Floats zerof() noexcept {
  return _mm512_setzero_ps();
}
SLUICE_INLINE Floats setf(float v) noexcept {
  return _mm512_set1_ps(v);
}
SLUICE_INLINE Floats mulf(Floats a, Floats b) noexcept {
  return _mm512_mul_ps(a, b);
}
SLUICE_INLINE Floats fma(Floats a, Floats b, Floats c) noexcept {
  return _mm512_fmadd_ps(a, b, c);
}
SLUICE_INLINE Floats fnma(Floats a, Floats b, Floats c) noexcept {
  return _mm512_fnmadd_ps(a, b, c);
}
/// One value per 16 elements: f32, f16 and bf16 weights.
SLUICE_INLINE Floats load_f16(const void* p) noexcept {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
SLUICE_INLINE Floats load_bf16(const void* p) noexcept {
  return as_float(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
}
/// Sum of the lanes, halving the width each time.
SLUICE_INLINE float reduce(Floats v) noexcept {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

struct Quad {
  Ints v0, v1, v2, v3;
};
struct Octet {
  Quad low, high;
};

/// Keeps the compiler from merging the address with others: sixteen row addresses do not fit the registers,
/// four with multiples of the stride do.
template <class T>
SLUICE_INLINE T opaque(T v) noexcept {
  asm("" : "+r"(v));
  return v;
}

/// Transposes the dwords of the 128-bit parts of four vectors.
SLUICE_INLINE Quad transpose_parts(Ints r0, Ints r1, Ints r2, Ints r3) noexcept {
  const Ints a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpackhi_epi32(r0, r1);
  const Ints c = _mm512_unpacklo_epi32(r2, r3), d = _mm512_unpackhi_epi32(r2, r3);
  return {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
          _mm512_unpackhi_epi64(b, d)};
}

/// Reads 16 bytes of each of 16 rows; lane r of v0..v3 holds row r's dword 0..3.
SLUICE_INLINE Quad transpose(const std::uint8_t* p, std::size_t stride) noexcept {
  const auto at = [](const std::uint8_t* q) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  };
  p = opaque(p);
  const std::uint8_t* p4 = opaque(p + 4 * stride);
  const std::uint8_t* p8 = opaque(p + 8 * stride);
  const std::uint8_t* p12 = opaque(p4 + 8 * stride);
  const auto gather = [&](std::size_t offset) noexcept {
    Ints v = _mm512_castsi128_si512(at(p + offset));
    v = _mm512_inserti32x4(v, at(p4 + offset), 1);
    v = _mm512_inserti32x4(v, at(p8 + offset), 2);
    return _mm512_inserti32x4(v, at(p12 + offset), 3);
  };
  return transpose_parts(gather(0), gather(stride), gather(2 * stride), gather(opaque(3 * stride)));
}

/// Reads 32 bytes of each of 16 rows: dwords 0..3 in low, 4..7 in high.
SLUICE_INLINE Octet transpose32(const std::uint8_t* p, std::size_t stride) noexcept {
  const auto at = [](const std::uint8_t* q) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  };
  p = opaque(p);
  const std::uint8_t* p4 = opaque(p + 4 * stride);
  const std::uint8_t* p8 = opaque(p + 8 * stride);
  const std::uint8_t* p12 = opaque(p4 + 8 * stride);
  const std::size_t stride3 = opaque(3 * stride);
  const auto pair = [&](const std::uint8_t* a, const std::uint8_t* b) noexcept {
    return _mm512_inserti64x4(_mm512_castsi256_si512(at(a)), at(b), 1);
  };
  const Quad a = transpose_parts(pair(p, p4), pair(p + stride, p4 + stride),
                                 pair(p + 2 * stride, p4 + 2 * stride), pair(p + stride3, p4 + stride3));
  const Quad b = transpose_parts(pair(p8, p12), pair(p8 + stride, p12 + stride),
                                 pair(p8 + 2 * stride, p12 + 2 * stride), pair(p8 + stride3, p12 + stride3));
  const auto even = [](Ints x, Ints y) noexcept { return _mm512_shuffle_i32x4(x, y, 0x88); };
  const auto odd = [](Ints x, Ints y) noexcept { return _mm512_shuffle_i32x4(x, y, 0xDD); };
  return {{even(a.v0, b.v0), even(a.v1, b.v1), even(a.v2, b.v2), even(a.v3, b.v3)},
          {odd(a.v0, b.v0), odd(a.v1, b.v1), odd(a.v2, b.v2), odd(a.v3, b.v3)}};
}

/// Rearranges the bytes of each lane: byte k becomes byte Bk, or 0 where Bk is negative.
template <int B0, int B1, int B2, int B3>
SLUICE_INLINE Ints pick(Ints v) noexcept {
  constexpr auto at = [](int lane, int b) { return static_cast<char>(b < 0 ? -128 : 4 * lane + b); };
  const __m128i index =
      _mm_setr_epi8(at(0, B0), at(0, B1), at(0, B2), at(0, B3), at(1, B0), at(1, B1), at(1, B2), at(1, B3),
                    at(2, B0), at(2, B1), at(2, B2), at(2, B3), at(3, B0), at(3, B1), at(3, B2), at(3, B3));
  return _mm512_shuffle_epi8(v, broadcast128(index));
}

/// Byte B of each lane in the shape that scaled_dot wants its scale: here a 32-bit integer.
template <int B>
SLUICE_INLINE Ints unsigned_scale(Ints v) noexcept {
  return pick<B, -1, -1, -1>(v);
}
template <int B>
SLUICE_INLINE Ints signed_scale(Ints v) noexcept {
  return _mm512_srai_epi32((pick<-1, -1, -1, B>(v)), 24);  // A macro without optimization.
}

constexpr bool k_row_dot = true;       ///< row_dot_avx512.hpp serves one activation row.
constexpr bool k_row_dot_asks = true;  ///< row_dot_avx512.hpp asks for the weights of later steps itself.
/// acc + the dot product of the 4 bytes of each lane, unsigned times signed.
SLUICE_INLINE Ints dot4(Ints acc, Ints w, Ints x) noexcept {
  return _mm512_dpbusd_epi32(acc, w, x);
}
/// acc + a.lo * b.lo + a.hi * b.hi of the 16-bit halves of each lane.
SLUICE_INLINE Ints dot16(Ints acc, Ints a, Ints b) noexcept {
  return _mm512_dpwssd_epi32(acc, a, b);
}

/// Largest bit pattern of |x| over n floats (a multiple of 16).
SLUICE_INLINE std::uint32_t max_magnitude_bits(const float* x, std::size_t n) noexcept {
  Ints largest = zero();
  for (std::size_t i = 0; i < n; i += 16) {
    largest = _mm512_max_epu32(largest, bit_and(_mm512_loadu_si512(x + i), set32(0x7FFFFFFF)));
  }
  return _mm512_reduce_max_epu32(largest);
}

/// Quantizes 16 floats with scale d and returns the sum of the quants.
SLUICE_INLINE std::int32_t quantize16(const float* x, Floats d, std::int8_t* q) noexcept {
  const Floats bounded =
      _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(loadf(x), d), setf(-127.0f)), setf(127.0f));
  const Ints rounded = _mm512_cvtps_epi32(bounded);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(rounded));
  return _mm512_reduce_add_epi32(rounded);
}

}  // namespace
}  // namespace sluice::kernels::simd
