#pragma once

// What the vector vocabularies of 256 bits (AVX2 + FMA + F16C) have in common: the same names as
// vec_avx512.hpp with 8 lanes. Included by vec_avx2.hpp and vec_avxvnni.hpp, which add the dot products.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/inline.hpp"

namespace sluice::kernels::simd {
namespace {

constexpr int k_lanes = 8;  ///< 32-bit lanes of a vector; also the weight rows of a panel.
constexpr int k_vec_bytes = 32;
constexpr int k_panels = 1;      ///< Panels that share the loads of an activation.
constexpr int k_x_tile = 4;      ///< Activation rows that share the loads of a panel.
constexpr int k_float_rows = 2;  ///< Register tile of the float kernels.
constexpr int k_float_x = 6;
using Ints = __m256i;
using Floats = __m256;

SLUICE_INLINE Ints load(const void* p) noexcept {
  return _mm256_load_si256(static_cast<const Ints*>(p));
}
SLUICE_INLINE void store(void* p, Ints v) noexcept {
  _mm256_store_si256(static_cast<Ints*>(p), v);
}
SLUICE_INLINE Ints zero() noexcept {
  return _mm256_setzero_si256();
}
SLUICE_INLINE Ints set8(int v) noexcept {
  return _mm256_set1_epi8(static_cast<char>(v));
}
SLUICE_INLINE Ints set16(int v) noexcept {
  return _mm256_set1_epi16(static_cast<short>(v));
}
SLUICE_INLINE Ints set32(int v) noexcept {
  return _mm256_set1_epi32(v);
}
SLUICE_INLINE Ints broadcast128(__m128i v) noexcept {
  return _mm256_broadcastsi128_si256(v);
}
/// The 16 bytes at p (16-byte aligned) in every 128-bit part.
SLUICE_INLINE Ints table16(const std::int8_t* p) noexcept {
  return broadcast128(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
/// The 4 bytes at p in every lane.
SLUICE_INLINE Ints broadcast32(const void* p) noexcept {
  int v;
  __builtin_memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

SLUICE_INLINE Ints bit_and(Ints a, Ints b) noexcept {
  return _mm256_and_si256(a, b);
}
SLUICE_INLINE Ints bit_or(Ints a, Ints b) noexcept {
  return _mm256_or_si256(a, b);
}
SLUICE_INLINE Ints bit_xor(Ints a, Ints b) noexcept {
  return _mm256_xor_si256(a, b);
}
/// (a & mask) | b.
SLUICE_INLINE Ints and_or(Ints a, Ints mask, Ints b) noexcept {
  return bit_or(bit_and(a, mask), b);
}
template <int N>
SLUICE_INLINE Ints srl32(Ints a) noexcept {
  return _mm256_srli_epi32(a, N);
}
template <int N>
SLUICE_INLINE Ints sll32(Ints a) noexcept {
  return _mm256_slli_epi32(a, N);
}
SLUICE_INLINE Ints add32(Ints a, Ints b) noexcept {
  return _mm256_add_epi32(a, b);
}
SLUICE_INLINE Ints sub32(Ints a, Ints b) noexcept {
  return _mm256_sub_epi32(a, b);
}
SLUICE_INLINE Ints sub8(Ints a, Ints b) noexcept {
  return _mm256_sub_epi8(a, b);
}
SLUICE_INLINE Ints mullo16(Ints a, Ints b) noexcept {
  return _mm256_mullo_epi16(a, b);
}
/// -N * a.
template <int N>
SLUICE_INLINE Ints negative_multiple(Ints a) noexcept {
  constexpr int shift = __builtin_ctz(N);
  if constexpr (N == 1 << shift) return _mm256_sub_epi32(zero(), _mm256_slli_epi32(a, shift));
  return _mm256_mullo_epi32(a, set32(-N));
}
SLUICE_INLINE Ints mullo32(Ints a, Ints b) noexcept {
  return _mm256_mullo_epi32(a, b);
}
template <int N>
SLUICE_INLINE Ints sra16(Ints a) noexcept {
  return _mm256_srai_epi16(a, N);
}
/// Looks up each byte of `index` (0..15) in a 16-byte table broadcast to all 128-bit parts.
SLUICE_INLINE Ints lookup(Ints table, Ints index) noexcept {
  return _mm256_shuffle_epi8(table, index);
}
/// Adds 16 to the bytes of a (whose bit 4 is clear) where b & bit is not zero; `bit` has one bit per byte.
SLUICE_INLINE Ints or_16_where(Ints a, Ints b, Ints bit) noexcept {
  return bit_or(a, bit_and(_mm256_cmpeq_epi8(bit_and(b, bit), bit), set8(16)));
}
/// a - b where c & bit is not zero, else a + b, of bytes; `bit` has one bit per byte.
SLUICE_INLINE Ints sub_or_add8(Ints a, Ints b, Ints c, Ints bit) noexcept {
  const Ints all = _mm256_cmpeq_epi8(bit_and(c, bit), bit);
  return _mm256_add_epi8(a, sub8(_mm256_xor_si256(b, all), all));
}

SLUICE_INLINE Floats to_float(Ints a) noexcept {
  return _mm256_cvtepi32_ps(a);
}
SLUICE_INLINE Floats as_float(Ints a) noexcept {
  return _mm256_castsi256_ps(a);
}
/// The f16 in the low half of each lane.
SLUICE_INLINE Floats half_to_float(Ints a) noexcept {
  const Ints low = bit_and(a, set32(0xFFFF));
  const Ints packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}
/// 2^(e - 128) for the exponent byte e of an MXFP4 block in each lane, subnormal for e < 2.
SLUICE_INLINE Floats exponent_to_float(Ints e) noexcept {
  const Ints normal = _mm256_slli_epi32(_mm256_sub_epi32(e, set32(1)), 23);
  const Ints small = _mm256_sllv_epi32(set32(0x00200000), e);
  return as_float(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(set32(2), e)));
}

/// Half of the unsigned E4M3 number in each lane (NVFP4): bias 7, top bit unused, 0x7F counts as 0.
SLUICE_INLINE Floats half_of_ue4m3(Ints v) noexcept {
  const Ints bits = bit_and(v, set32(0x7F));
  const Ints normal = _mm256_add_epi32(sll32<20>(bits), set32(119 << 23));
  const Floats small = _mm256_mul_ps(to_float(bits), _mm256_set1_ps(0x1p-10f));
  const Ints half =
      _mm256_blendv_epi8(normal, _mm256_castps_si256(small), _mm256_cmpgt_epi32(set32(8), bits));
  return as_float(_mm256_andnot_si256(_mm256_cmpeq_epi32(v, set32(0x7F)), half));
}

SLUICE_INLINE Floats loadf(const float* p) noexcept {
  return _mm256_loadu_ps(p);
}
SLUICE_INLINE void storef(float* p, Floats v) noexcept {
  _mm256_storeu_ps(p, v);
}
SLUICE_INLINE Floats zerof() noexcept {
  return _mm256_setzero_ps();
}
SLUICE_INLINE Floats setf(float v) noexcept {
  return _mm256_set1_ps(v);
}
SLUICE_INLINE Floats mulf(Floats a, Floats b) noexcept {
  return _mm256_mul_ps(a, b);
}
SLUICE_INLINE Floats fma(Floats a, Floats b, Floats c) noexcept {
  return _mm256_fmadd_ps(a, b, c);
}
SLUICE_INLINE Floats fnma(Floats a, Floats b, Floats c) noexcept {
  return _mm256_fnmadd_ps(a, b, c);
}
SLUICE_INLINE Floats load_f16(const void* p) noexcept {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
SLUICE_INLINE Floats load_bf16(const void* p) noexcept {
  return as_float(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
}
/// Sum of the lanes, halving the width each time.
SLUICE_INLINE float reduce(Floats v) noexcept {
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

struct Quad {
  Ints v0, v1, v2, v3;
};
struct Octet {
  Quad low, high;
};

/// Reads 16 bytes of each of 8 rows; lane r of v0..v3 holds row r's dword 0..3.
SLUICE_INLINE Quad transpose(const std::uint8_t* p, std::size_t stride) noexcept {
  const std::uint8_t* p4 = p + 4 * stride;
  const auto gather = [&](std::size_t offset) noexcept {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + offset))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p4 + offset)), 1);
  };
  const Ints r0 = gather(0), r1 = gather(stride), r2 = gather(2 * stride), r3 = gather(3 * stride);
  const Ints a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpackhi_epi32(r0, r1);
  const Ints c = _mm256_unpacklo_epi32(r2, r3), d = _mm256_unpackhi_epi32(r2, r3);
  return {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
          _mm256_unpackhi_epi64(b, d)};
}

/// Reads 32 bytes of each of 8 rows: dwords 0..3 in low, 4..7 in high.
SLUICE_INLINE Octet transpose32(const std::uint8_t* p, std::size_t stride) noexcept {
  return {transpose(p, stride), transpose(p + 16, stride)};
}

/// Rearranges the bytes of each lane: byte k becomes byte Bk, or 0 where Bk is negative.
template <int B0, int B1, int B2, int B3>
SLUICE_INLINE Ints pick(Ints v) noexcept {
  constexpr auto at = [](int lane, int b) { return static_cast<char>(b < 0 ? -128 : 4 * lane + b); };
  const __m128i index =
      _mm_setr_epi8(at(0, B0), at(0, B1), at(0, B2), at(0, B3), at(1, B0), at(1, B1), at(1, B2), at(1, B3),
                    at(2, B0), at(2, B1), at(2, B2), at(2, B3), at(3, B0), at(3, B1), at(3, B2), at(3, B3));
  return _mm256_shuffle_epi8(v, broadcast128(index));
}

/// Largest bit pattern of |x| over n floats (a multiple of 16).
SLUICE_INLINE std::uint32_t max_magnitude_bits(const float* x, std::size_t n) noexcept {
  Ints largest = zero();
  for (std::size_t i = 0; i < n; i += 8) {
    const Ints bits = _mm256_loadu_si256(reinterpret_cast<const Ints*>(x + i));
    largest = _mm256_max_epu32(largest, bit_and(bits, set32(0x7FFFFFFF)));
  }
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(m));
}

/// Quantizes 16 floats with scale d and returns the sum of the quants.
SLUICE_INLINE std::int32_t quantize16(const float* x, Floats d, std::int8_t* q) noexcept {
  const auto round = [&](const float* from) noexcept {
    return _mm256_cvtps_epi32(
        _mm256_min_ps(_mm256_max_ps(_mm256_div_ps(loadf(from), d), setf(-127.0f)), setf(127.0f)));
  };
  const Ints words = _mm256_packs_epi32(round(x), round(x + 8));  // 0-3, 8-11 | 4-7, 12-15
  const Ints ordered = _mm256_permute4x64_epi64(words, 0xD8);
  const __m128i low = _mm256_castsi256_si128(ordered), high = _mm256_extracti128_si256(ordered, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_packs_epi16(low, high));
  __m128i sum = _mm_madd_epi16(_mm_add_epi16(low, high), _mm_set1_epi16(1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
  return _mm_cvtsi128_si32(sum);
}

}  // namespace
}  // namespace sluice::kernels::simd
