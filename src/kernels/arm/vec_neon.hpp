#pragma once

// Vector vocabulary of the kernels for AArch64 NEON with the dot-product extension (SDOT): the same names as
// x86/vec_avx512.hpp with 4 lanes. Included by translation units compiled with those flags only; everything
// lies in an unnamed namespace.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/inline.hpp"

namespace sluice::kernels::simd {
namespace {

constexpr int k_lanes = 4;  ///< 32-bit lanes of a vector; also the weight rows of a panel.
constexpr int k_vec_bytes = 16;
constexpr int k_panels = 2;      ///< Panels that share the loads of an activation.
constexpr int k_x_tile = 4;      ///< Activation rows that share the loads of a panel.
constexpr int k_float_rows = 4;  ///< Register tile of the float kernels.
constexpr int k_float_x = 4;
/// SDOT multiplies signed by signed bytes, and every other format's stored values are below 128.
constexpr int k_wide_bias = 0;

using Ints = int32x4_t;
using Floats = float32x4_t;

SLUICE_INLINE uint8x16_t bytes_of(Ints v) noexcept {
  return vreinterpretq_u8_s32(v);
}
SLUICE_INLINE Ints ints_of(uint8x16_t v) noexcept {
  return vreinterpretq_s32_u8(v);
}

SLUICE_INLINE Ints load(const void* p) noexcept {
  return ints_of(vld1q_u8(static_cast<const std::uint8_t*>(p)));
}
SLUICE_INLINE void store(void* p, Ints v) noexcept {
  vst1q_u8(static_cast<std::uint8_t*>(p), bytes_of(v));
}
SLUICE_INLINE Ints zero() noexcept {
  return vdupq_n_s32(0);
}
SLUICE_INLINE Ints set8(int v) noexcept {
  return vreinterpretq_s32_s8(vdupq_n_s8(static_cast<std::int8_t>(v)));
}
SLUICE_INLINE Ints set16(int v) noexcept {
  return vreinterpretq_s32_s16(vdupq_n_s16(static_cast<std::int16_t>(v)));
}
SLUICE_INLINE Ints set32(int v) noexcept {
  return vdupq_n_s32(v);
}
/// The 16 bytes at p.
SLUICE_INLINE Ints table16(const std::int8_t* p) noexcept {
  return load(p);
}
/// The 4 bytes at p in every lane.
SLUICE_INLINE Ints broadcast32(const void* p) noexcept {
  std::int32_t v;
  __builtin_memcpy(&v, p, 4);
  return vdupq_n_s32(v);
}

SLUICE_INLINE Ints bit_and(Ints a, Ints b) noexcept {
  return vandq_s32(a, b);
}
SLUICE_INLINE Ints bit_or(Ints a, Ints b) noexcept {
  return vorrq_s32(a, b);
}
SLUICE_INLINE Ints bit_xor(Ints a, Ints b) noexcept {
  return veorq_s32(a, b);
}
/// (a & mask) | b.
SLUICE_INLINE Ints and_or(Ints a, Ints mask, Ints b) noexcept {
  return bit_or(bit_and(a, mask), b);
}
// The shifts are operators of the compiler's vectors, because the intrinsics are macros without optimization.
template <int N>
SLUICE_INLINE Ints srl32(Ints a) noexcept {
  return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) >> N);
}
template <int N>
SLUICE_INLINE Ints sll32(Ints a) noexcept {
  return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) << N);
}
SLUICE_INLINE Ints add32(Ints a, Ints b) noexcept {
  return vaddq_s32(a, b);
}
SLUICE_INLINE Ints sub32(Ints a, Ints b) noexcept {
  return vsubq_s32(a, b);
}
SLUICE_INLINE Ints sub8(Ints a, Ints b) noexcept {
  return ints_of(vsubq_u8(bytes_of(a), bytes_of(b)));
}
SLUICE_INLINE Ints mullo16(Ints a, Ints b) noexcept {
  return vreinterpretq_s32_s16(vmulq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
/// -N * a.
template <int N>
SLUICE_INLINE Ints negative_multiple(Ints a) noexcept {
  return vmulq_s32(a, vdupq_n_s32(-N));
}
SLUICE_INLINE Ints mullo32(Ints a, Ints b) noexcept {
  return vmulq_s32(a, b);
}
template <int N>
SLUICE_INLINE Ints sra16(Ints a) noexcept {
  return vreinterpretq_s32_s16(vreinterpretq_s16_s32(a) >> N);
}
/// Looks up each byte of `index` (0..15) in a 16-byte table.
SLUICE_INLINE Ints lookup(Ints table, Ints index) noexcept {
  return ints_of(vqtbl1q_u8(bytes_of(table), bytes_of(index)));
}
/// Adds the wide bias to signed bytes.
SLUICE_INLINE Ints bias_wide(Ints a) noexcept {
  return a;
}
/// Adds 16 to the bytes of a (whose bit 4 is clear) where b & bit is not zero.
SLUICE_INLINE Ints or_16_where(Ints a, Ints b, Ints bit) noexcept {
  return bit_or(a, bit_and(ints_of(vtstq_u8(bytes_of(b), bytes_of(bit))), set8(16)));
}
/// a - b where c & bit is not zero, else a + b, of bytes; `bit` has one bit per byte.
SLUICE_INLINE Ints sub_or_add8(Ints a, Ints b, Ints c, Ints bit) noexcept {
  const uint8x16_t all = vtstq_u8(bytes_of(c), bytes_of(bit));
  return ints_of(vaddq_u8(bytes_of(a), vsubq_u8(veorq_u8(bytes_of(b), all), all)));
}

SLUICE_INLINE Floats to_float(Ints a) noexcept {
  return vcvtq_f32_s32(a);
}
SLUICE_INLINE Floats as_float(Ints a) noexcept {
  return vreinterpretq_f32_s32(a);
}
/// The f16 in the low half of each lane.
SLUICE_INLINE Floats half_to_float(Ints a) noexcept {
  return vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(a)));
}
/// 2^(e - 128) for the exponent byte e of an MXFP4 block in each lane, subnormal for e < 2.
SLUICE_INLINE Floats exponent_to_float(Ints e) noexcept {
  const Ints normal = sll32<23>(vsubq_s32(e, set32(1)));
  const Ints small = vshlq_s32(set32(0x00200000), e);
  return as_float(vbslq_s32(vcltq_s32(e, set32(2)), small, normal));
}

/// Half of the unsigned E4M3 number in each lane (NVFP4): bias 7, top bit unused, 0x7F counts as 0.
SLUICE_INLINE Floats half_of_ue4m3(Ints v) noexcept {
  const Ints bits = bit_and(v, set32(0x7F));
  const Ints normal = add32(sll32<20>(bits), set32(119 << 23));
  const Ints small = vreinterpretq_s32_f32(vmulq_n_f32(to_float(bits), 0x1p-10f));
  const Ints half = vbslq_s32(vcltq_s32(bits, set32(8)), small, normal);
  return as_float(vbicq_s32(half, vreinterpretq_s32_u32(vceqq_s32(v, set32(0x7F)))));
}

SLUICE_INLINE Floats loadf(const float* p) noexcept {
  return vld1q_f32(p);
}
SLUICE_INLINE void storef(float* p, Floats v) noexcept {
  vst1q_f32(p, v);
}
SLUICE_INLINE Floats zerof() noexcept {
  return vdupq_n_f32(0.0f);
}
SLUICE_INLINE Floats setf(float v) noexcept {
  return vdupq_n_f32(v);
}
SLUICE_INLINE Floats mulf(Floats a, Floats b) noexcept {
  return vmulq_f32(a, b);
}
SLUICE_INLINE Floats fma(Floats a, Floats b, Floats c) noexcept {
  return vfmaq_f32(c, a, b);
}
SLUICE_INLINE Floats fnma(Floats a, Floats b, Floats c) noexcept {
  return vfmsq_f32(c, a, b);
}
/// Four 16-bit values at any address.
SLUICE_INLINE uint16x4_t load_halves(const void* p) noexcept {
  return vreinterpret_u16_u8(vld1_u8(static_cast<const std::uint8_t*>(p)));
}
SLUICE_INLINE Floats load_f16(const void* p) noexcept {
  return vcvt_f32_f16(vreinterpret_f16_u16(load_halves(p)));
}
SLUICE_INLINE Floats load_bf16(const void* p) noexcept {
  return as_float(sll32<16>(vreinterpretq_s32_u32(vmovl_u16(load_halves(p)))));
}
/// Sum of the lanes, halving the width each time.
SLUICE_INLINE float reduce(Floats v) noexcept {
  const float32x2_t half = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}

struct Quad {
  Ints v0, v1, v2, v3;
};
struct Octet {
  Quad low, high;
};

/// Reads 16 bytes of each of 4 rows; lane r of v0..v3 holds row r's dword 0..3.
SLUICE_INLINE Quad transpose(const std::uint8_t* p, std::size_t stride) noexcept {
  const Ints r0 = load(p), r1 = load(p + stride), r2 = load(p + 2 * stride), r3 = load(p + 3 * stride);
  const int64x2_t even01 = vreinterpretq_s64_s32(vtrn1q_s32(r0, r1));  // dwords 0 and 2 of rows 0 and 1
  const int64x2_t odd01 = vreinterpretq_s64_s32(vtrn2q_s32(r0, r1));
  const int64x2_t even23 = vreinterpretq_s64_s32(vtrn1q_s32(r2, r3));
  const int64x2_t odd23 = vreinterpretq_s64_s32(vtrn2q_s32(r2, r3));
  return {vreinterpretq_s32_s64(vtrn1q_s64(even01, even23)), vreinterpretq_s32_s64(vtrn1q_s64(odd01, odd23)),
          vreinterpretq_s32_s64(vtrn2q_s64(even01, even23)), vreinterpretq_s32_s64(vtrn2q_s64(odd01, odd23))};
}

/// Reads 32 bytes of each of 4 rows: dwords 0..3 in low, 4..7 in high.
SLUICE_INLINE Octet transpose32(const std::uint8_t* p, std::size_t stride) noexcept {
  return {transpose(p, stride), transpose(p + 16, stride)};
}

/// Rearranges the bytes of each lane: byte k becomes byte Bk, or 0 where Bk is negative.
template <int B0, int B1, int B2, int B3>
SLUICE_INLINE Ints pick(Ints v) noexcept {
  constexpr auto at = [](int lane, int b) { return static_cast<std::uint8_t>(b < 0 ? 0xFF : 4 * lane + b); };
  constexpr uint8x16_t index = {at(0, B0), at(0, B1), at(0, B2), at(0, B3), at(1, B0), at(1, B1),
                                at(1, B2), at(1, B3), at(2, B0), at(2, B1), at(2, B2), at(2, B3),
                                at(3, B0), at(3, B1), at(3, B2), at(3, B3)};
  return ints_of(vqtbl1q_u8(bytes_of(v), index));
}

/// Byte B of each lane in the shape that scaled_dot wants its scale: here a 32-bit integer.
template <int B>
SLUICE_INLINE Ints unsigned_scale(Ints v) noexcept {
  return pick<B, -1, -1, -1>(v);
}
template <int B>
SLUICE_INLINE Ints signed_scale(Ints v) noexcept {
  return pick<-1, -1, -1, B>(v) >> 24;
}

constexpr bool k_row_dot = true;  ///< row_dot_fused.hpp serves one activation row.
constexpr bool k_row_dot_asks = false;
/// acc + the dot product of the 4 bytes of each lane.
SLUICE_INLINE Ints dot4(Ints acc, Ints w, Ints x) noexcept {
  return vdotq_s32(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
}
/// acc + a.lo * b.lo + a.hi * b.hi of the 16-bit halves of each lane.
SLUICE_INLINE Ints dot16(Ints acc, Ints a, Ints b) noexcept {
  const int16x8_t a16 = vreinterpretq_s16_s32(a), b16 = vreinterpretq_s16_s32(b);
  const Ints low = vmull_s16(vget_low_s16(a16), vget_low_s16(b16));
  return vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(a16, b16)));
}

/// acc[p][t] += the dot products of Groups consecutive 4-element groups: those of panel p, whose bytes start
/// at w + p * panel_bytes, with those of activation row t. One load brings four groups of an activation.
template <class Format, int Groups, int P, int T>
SLUICE_INLINE void dot(const std::uint8_t* w, std::size_t panel_bytes, const std::int8_t* const (&q)[T],
                       Ints (&acc)[P][T]) noexcept {
  static_assert(Groups % 4 == 0);
#pragma GCC unroll 2
  for (int g = 0; g < Groups; g += 4) {
    int8x16_t x[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) x[t] = vld1q_s8(q[t] + 4 * g);
    const auto group = [&]<int Lane>() noexcept __attribute__((always_inline)) {
      int8x16_t wg[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p)
        wg[p] = vreinterpretq_s8_s32(load(w + p * panel_bytes + (g + Lane) * k_vec_bytes));
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) acc[p][t] = vdotq_laneq_s32(acc[p][t], wg[p], x[t], Lane);
      }
    };
    group.template operator()<0>();
    group.template operator()<1>();
    group.template operator()<2>();
    group.template operator()<3>();
  }
}

/// Largest bit pattern of |x| over n floats (a multiple of 16).
SLUICE_INLINE std::uint32_t max_magnitude_bits(const float* x, std::size_t n) noexcept {
  uint32x4_t largest = vdupq_n_u32(0);
  for (std::size_t i = 0; i < n; i += 4)
    largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(loadf(x + i))));
  return vmaxvq_u32(largest);
}

/// Quantizes 16 floats with scale d and returns the sum of the quants.
SLUICE_INLINE std::int32_t quantize16(const float* x, Floats d, std::int8_t* q) noexcept {
  const auto round = [&](const float* from) noexcept {
    const Floats bounded = vminq_f32(vmaxq_f32(vdivq_f32(loadf(from), d), setf(-127.0f)), setf(127.0f));
    return vmovn_s32(vcvtnq_s32_f32(bounded));  // to nearest, ties to even
  };
  const int16x8_t low = vcombine_s16(round(x), round(x + 4));
  const int16x8_t high = vcombine_s16(round(x + 8), round(x + 12));
  vst1q_s8(q, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  return vaddvq_s16(vaddq_s16(low, high));
}

}  // namespace
}  // namespace sluice::kernels::simd
