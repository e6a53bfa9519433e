#pragma once

// IQ3_XXS and IQ3_S: four elements are a point of a codebook.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {

/// w = d * (0.5 + scale) / 2 * grid * sign; an index byte per 4 elements; sign and scale words as in IQ2_XXS.
struct BlockIq3Xxs {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[64];
  Le32 signs_scale[8];
};

/// w = d * (1 + 2 scale) * grid * sign; 9 bits of index per 4 elements (qs and a bit of qh), explicit sign
/// bits, a scale nibble per 32.
struct BlockIq3S {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[64];
  std::uint8_t qh[8];
  std::uint8_t signs[32];
  std::uint8_t scales[4];
};

inline void unpack(const BlockIq3Xxs& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.25f;
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t word = block.signs_scale[g];
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(word >> 28);
    for (std::size_t p = 0; p < 8; ++p) {
      const unsigned signs = static_cast<unsigned>(expand_signs(word >> 7 * (p / 2))) >> 4 * (p % 2);
      put_point(k_iq3_xxs_grid[block.qs[8 * g + p]], signs, out.q + 32 * g + 4 * p);
    }
  }
}

inline void unpack(const BlockIq3S& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(block.scales[g / 2] >> 4 * (g % 2) & 0xfu);
  }
  for (std::size_t p = 0; p < 64; ++p) {
    const unsigned high = block.qh[p / 8] >> p % 8 & 1u;
    const unsigned signs = static_cast<unsigned>(block.signs[p / 2]) >> 4 * (p % 2);
    put_point(k_iq3_s_grid[block.qs[p] | high << 8], signs, out.q + 4 * p);
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

struct Iq3Xxs {
  static constexpr int k_block_bytes = 98, k_sub_groups = 8, k_offset = 64, k_max = 64 + 62;
  static constexpr float k_factor = 0.25f;
  static constexpr Signs k_signs = Signs::words;
  static constexpr int k_scale_shift = 16, k_scale_mask = 0x000F000F;
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 64
    for (std::size_t i = 0; i < 64; ++i)
      put_entry<std::uint32_t>(w + 4 * i, scalar::k_iq3_xxs_grid, p[2 + i]);
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p);
    __builtin_memcpy(row.signs, p + 66, 32);
  }
};

struct Iq3S {
  static constexpr int k_block_bytes = 110, k_sub_groups = 8, k_offset = 16, k_max = 16 + 15;
  static constexpr float k_factor = 1.0f;
  static constexpr Signs k_signs = Signs::bits;
  static constexpr int k_scale_shift = 16, k_scale_mask = 0x000F000F;
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 64
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t high = static_cast<std::uint32_t>(p[66 + i / 8]) << 8;
      put_entry<std::uint32_t>(w + 4 * i, scalar::k_iq3_s_grid, p[2 + i] | (high >> i % 8 & 0x100));
    }
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p);
    __builtin_memcpy(row.signs, p + 74, 32);
#pragma GCC unroll 8
    for (std::size_t g = 0; g < 8; ++g)
      row.field[g] = static_cast<std::uint32_t>(p[106 + g / 2]) >> 4 * (g % 2);
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

alignas(16) constexpr std::int8_t k_iq3_xxs_magnitudes[16] = {4, 12, 20, 28, 36, 44, 52, 62};

alignas(16) constexpr std::int8_t k_iq3_s_magnitudes[16] = {1, 3, 5, 7, 9, 11, 13, 15};

template <>
struct PointWriter<Iq3Xxs> {
  static SLUICE_INLINE void put(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Ints index = load_bytes16(p + 2 + 32 * half);
      put_digits<4>(look_up16<256>(scalar::k_iq3_xxs_packed, index), k_iq3_xxs_magnitudes, w + 128 * half);
    }
  }
};

template <>
struct PointWriter<Iq3S> {
  static SLUICE_INLINE void put(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Ints low = load_bytes16(p + 2 + 32 * half);
      const auto high = load_as<__mmask32>(p + 66 + 4 * half);  // bit i: the ninth bit of index i
      const Ints index = _mm512_mask_add_epi16(low, high, low, set16(256));
      put_digits<4>(look_up16<512>(scalar::k_iq3_s_packed, index), k_iq3_s_magnitudes, w + 128 * half);
    }
  }
};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
