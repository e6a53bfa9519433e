#pragma once

// IQ2_XXS, IQ2_XS and IQ2_S: eight elements are a point of a codebook. They share magnitudes, scales and most
// of the code.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {

/// w = d * (0.5 + scale) / 4 * grid * sign, per 32: four index bytes, then a word of four 7-bit sign codes
/// and the scale in the top nibble.
struct BlockIq2Xxs {
  static constexpr std::size_t k_elements = 256;
  struct Group {
    std::uint8_t index[4];
    Le32 signs_scale;
  };
  Half d;
  Group groups[8];
};

/// Same value; a word per 8 elements: 9 bits of index, 7 of sign code. A scale nibble per 16.
struct BlockIq2Xs {
  static constexpr std::size_t k_elements = 256;
  Half d;
  Le16 qs[32];
  std::uint8_t scales[8];
};

/// Same value; 10 bits of index (qs and a bit pair of qh), 8 explicit sign bits. A scale nibble per 16.
struct BlockIq2S {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[32];
  std::uint8_t signs[32];
  std::uint8_t qh[8];
  std::uint8_t scales[8];
};

/// A nibble for every 16 elements.
inline void put_iq2_scales(const std::uint8_t (&scales)[8], std::int8_t* out) noexcept {
  for (std::size_t s = 0; s < 16; ++s) out[s] = odd_scale(scales[s / 2] >> 4 * (s % 2) & 0xfu);
}

inline void unpack(const BlockIq2Xxs& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t word = block.groups[g].signs_scale;
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(word >> 28);
    for (std::size_t p = 0; p < 4; ++p) {
      put_point(k_iq2_xxs_grid[block.groups[g].index[p]], expand_signs(word >> 7 * p),
                out.q + 32 * g + 8 * p);
    }
  }
}

inline void unpack(const BlockIq2Xs& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  put_iq2_scales(block.scales, out.scale);
  for (std::size_t p = 0; p < 32; ++p) {
    const std::uint16_t word = block.qs[p];
    put_point(k_iq2_xs_grid[word & 511u], expand_signs(word >> 9), out.q + 8 * p);
  }
}

inline void unpack(const BlockIq2S& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  put_iq2_scales(block.scales, out.scale);
  for (std::size_t p = 0; p < 32; ++p) {
    const unsigned high = block.qh[p / 4] >> 2 * (p % 4) & 3u;
    put_point(k_iq2_s_grid[block.qs[p] | high << 8], block.signs[p], out.q + 8 * p);
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// What the two-bit codebooks have in common.
struct Iq2 {
  static constexpr int k_offset = 64, k_max = 64 + 43;
  static constexpr float k_factor = 0.125f;
};

struct Iq2Xxs : Iq2 {
  static constexpr int k_block_bytes = 66, k_sub_groups = 8;
  static constexpr Signs k_signs = Signs::words;
  static constexpr int k_scale_shift = 16, k_scale_mask = 0x000F000F;
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 32
    for (std::size_t i = 0; i < 32; ++i)
      put_entry<std::uint64_t>(w + 8 * i, scalar::k_iq2_xxs_grid, p[2 + 8 * (i / 4) + i % 4]);
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p);
#pragma GCC unroll 8
    for (std::size_t g = 0; g < 8; ++g) __builtin_memcpy(row.signs + 4 * g, p + 6 + 8 * g, 4);
  }
};

/// IQ2_XS and IQ2_S have two nibbles of scales in a byte.
struct Iq2Nibbles : Iq2 {
  static constexpr int k_sub_groups = 4;
  static constexpr int k_scale_shift = 12, k_scale_mask = 0x000F000F;
  static SLUICE_INLINE void expand_scales(const std::uint8_t* p, const GridRow& row) noexcept {
#pragma GCC unroll 8
    for (std::size_t g = 0; g < 8; ++g) row.field[g] = p[g];
  }
};

struct Iq2Xs : Iq2Nibbles {
  static constexpr int k_block_bytes = 74;
  static constexpr Signs k_signs = Signs::codes;
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 32
    for (std::size_t i = 0; i < 32; ++i) {
      const std::size_t index = load_as<std::uint16_t>(p + 2 + 2 * i) & 511;
      put_entry<std::uint64_t>(w + 8 * i, scalar::k_iq2_xs_grid, index);
    }
  }
  static SLUICE_INLINE void put_codes(const std::uint8_t* __restrict p,
                                      std::uint8_t* __restrict to) noexcept {
    for (std::size_t i = 0; i < 32; ++i)
      to[i] = static_cast<std::uint8_t>(load_as<std::uint16_t>(p + 2 * i) >> 9);
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p);
    put_codes(p + 2, row.signs);
    expand_scales(p + 66, row);
  }
};

struct Iq2S : Iq2Nibbles {
  static constexpr int k_block_bytes = 82;
  static constexpr Signs k_signs = Signs::bits;
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 32
    for (std::size_t i = 0; i < 32; ++i) {
      const std::uint32_t high = static_cast<std::uint32_t>(p[66 + i / 4]) << 8;
      put_entry<std::uint64_t>(w + 8 * i, scalar::k_iq2_s_grid, p[2 + i] | (high >> 2 * (i % 4) & 0x300));
    }
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p);
    __builtin_memcpy(row.signs, p + 34, 32);
    expand_scales(p + 74, row);
  }
};

#ifdef SLUICE_AVX512_ROW_DOT

alignas(16) constexpr std::int8_t k_iq2_magnitudes[16] = {8, 25, 43};

template <>
struct PointWriter<Iq2Xxs> {
  static SLUICE_INLINE void put(const std::uint8_t* p, std::uint8_t* w) noexcept {
    // Four indices, four bytes of signs, and so on.
    const Ints index = _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(_mm512_loadu_si512(p + 2)));
    put_digits<8>(look_up16<256>(scalar::k_iq2_xxs_packed, index), k_iq2_magnitudes, w);
  }
};

template <>
struct PointWriter<Iq2Xs> {
  static SLUICE_INLINE void put(const std::uint8_t* p, std::uint8_t* w) noexcept {
    // The sign codes above the index do not matter to the lookup.
    put_digits<8>(look_up16<512>(scalar::k_iq2_xs_packed, _mm512_loadu_si512(p + 2)), k_iq2_magnitudes, w);
  }
};

template <>
struct PointWriter<Iq2S> {
  static SLUICE_INLINE void put(const std::uint8_t* p, std::uint8_t* w) noexcept {
    // Word i gets byte i / 4 of the high bits, above a byte that is cleared.
    static constexpr Words source = [] {
      Words words = pattern<4, 8, 256>();
      for (std::uint16_t& word : words.at) word = static_cast<std::uint16_t>(word | 0x80);
      return words;
    }();
    static constexpr Words shift = pattern<1, 4, 2>();
    const Ints high = _mm512_shuffle_epi8(_mm512_set1_epi64(load_as<long long>(p + 66)), load(&source));
    const Ints index = and_or(_mm512_srlv_epi16(high, load(&shift)), set16(0x0300), load_bytes16(p + 2));
    put_digits<8>(look_up16<1024>(scalar::k_iq2_s_packed, index), k_iq2_magnitudes, w);
  }
};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
