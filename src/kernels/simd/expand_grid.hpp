#pragma once

// Formats whose elements are points of a codebook (IQ1, IQ2, IQ3) or base-3 digits (TQ): one row of one block
// as bytes. Table lookups of four or eight bytes serve every instruction set; gathers are no faster on x86,
// and NEON has none. Layouts are those of scalar/blocks.hpp.
//
// Each format has
//   k_signs     where its signs are: see Signs;
//   k_offset    what a panel's stored values, and the bytes of a format without signs, are larger by;
//   k_max       the largest stored value;
//   k_factor    of the block's f16 scale, so that the scales of 16 elements are integers;
//   k_scale_shift, k_scale_mask: of a field f for 32 elements; (f | f << shift) & mask are two 16-bit numbers
//               n, and 2 n + 1 are the scales of the first and of the last 16;
//   put_points  the 256 bytes of the block at p, and expand the rest of it, to one row of GridRows.

#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::simd {
namespace {

enum class Signs {
  none,   ///< The bytes are stored values.
  bits,   ///< The bytes are magnitudes; each has a bit, which is set where the element is negative.
  codes,  ///< The same, and the last bit of eight is the parity of the others.
  words,  ///< A word for 32 elements: four such codes of seven bits, then the field of the scales.
};

/// What put_points does, for sets that have a better way.
template <class Points>
struct PointWriter {
  static SLUICE_INLINE void put(const std::uint8_t* p, std::uint8_t* w) noexcept { Points::put_points(p, w); }
};

/// What expand writes of a row of a block.
struct GridRow {
  std::uint8_t* signs;   ///< 32 bytes; bit e of byte b belongs to element 8 b + e, except with Signs::words.
  std::uint32_t* field;  ///< 8 fields of scales, unless they are in words; 0 makes both scales 1.
  std::uint32_t* d;      ///< The block's scale, an f16.
};

template <class T>
SLUICE_INLINE T load_as(const std::uint8_t* p) noexcept {
  T v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

/// Entry `index` of a table of T to p, through a register: compilers would collect entries in vectors, which
/// takes longer.
template <class T, class Table>
SLUICE_INLINE void put_entry(std::uint8_t* p, const Table& table, std::size_t index) noexcept {
  T v = load_as<T>(reinterpret_cast<const std::uint8_t*>(&table) + sizeof(T) * index);
  asm("" : "+r"(v));
  __builtin_memcpy(p, &v, sizeof v);
}

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

/// Elements 8 * ternary +- 1; the table and the stored values are larger by 16.
struct Iq1 {
  static constexpr int k_offset = 16, k_max = 25;
  static constexpr float k_factor = 0.125f;
  static constexpr Signs k_signs = Signs::none;
  static constexpr std::uint64_t k_ones = 0x0101010101010101u;
  /// The point and +1, or -1 where `minus` is not 0, of each element: 7 to 25, so nothing is carried.
  static SLUICE_INLINE void put(std::uint8_t* w, std::size_t index, std::uint32_t minus) noexcept {
    std::uint64_t v =
        load_as<std::uint64_t>(reinterpret_cast<const std::uint8_t*>(&scalar::k_iq1_raised_grid) + 8 * index);
    v += minus != 0 ? 0 - k_ones : k_ones;
    asm("" : "+r"(v));  // see put_entry
    __builtin_memcpy(w, &v, sizeof v);
  }
};

struct Iq1S : Iq1 {
  static constexpr int k_block_bytes = 50, k_sub_groups = 8;
  static constexpr int k_scale_shift = 16, k_scale_mask = 0x00070007;
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 8
    for (std::size_t g = 0; g < 8; ++g) {
      const std::uint32_t word = load_as<std::uint16_t>(p + 34 + 2 * g);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i)
        put(w + 32 * g + 8 * i, p[2 + 4 * g + i] | (word << 8 >> 3 * i & 0x700), word & 0x8000);
    }
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p);
#pragma GCC unroll 8
    for (std::size_t g = 0; g < 8; ++g) row.field[g] = load_as<std::uint16_t>(p + 34 + 2 * g) >> 12;
  }
};

struct Iq1M : Iq1 {
  static constexpr int k_block_bytes = 56, k_sub_groups = 4;
  static constexpr int k_scale_shift = 13, k_scale_mask = 0x00070007;
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) {
      const std::uint32_t high = p[32 + i];
      put(w + 16 * i, p[2 * i] | (high << 8 & 0x700), high & 0x08);
      put(w + 16 * i + 8, p[2 * i + 1] | (high << 4 & 0x700), high & 0x80);
    }
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = 0;
#pragma GCC unroll 4
    for (std::size_t g = 0; g < 4; ++g) {  // of 64 elements
      const std::uint32_t word = load_as<std::uint16_t>(p + 48 + 2 * g);
      *row.d |= word >> 12 << 4 * g;
      row.field[2 * g] = word;
      row.field[2 * g + 1] = word >> 6;
    }
  }
};

/// Elements -1, 0 and 1 (TQ2_0 can also say 2), stored larger by 1.
struct Tq {
  static constexpr int k_offset = 1, k_max = 3, k_sub_groups = 8;
  static constexpr float k_factor = 1.0f;
  static constexpr Signs k_signs = Signs::none;
  static constexpr int k_scale_shift = 0, k_scale_mask = 0;
};

struct Tq1 : Tq {
  static constexpr int k_block_bytes = 54;
  /// Digit 0 of N bytes, digit 1 of them, and so on. Three times a fraction of 256 is the next digit and what
  /// is left, so even and odd bytes are kept in 16 bits each.
  template <class Word, int N, int Digits>
  static SLUICE_INLINE void put(const std::uint8_t* p, std::uint8_t* w) noexcept {
    constexpr Word low = static_cast<Word>(0x00FF00FF00FF00FFu);
    for (std::size_t m = 0; m < N; m += sizeof(Word)) {
      const Word bytes = load_as<Word>(p + m);
      Word even = bytes & low, odd = bytes >> 8 & low;
      for (std::size_t digit = 0; digit < Digits; ++digit) {
        even *= 3;
        odd *= 3;
        const Word digits = (even >> 8 & low) | (odd & ~low);
        __builtin_memcpy(w + N * digit + m, &digits, sizeof digits);
        even &= low;
        odd &= low;
      }
    }
  }
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
    put<std::uint64_t, 32, 5>(p, w);
    put<std::uint64_t, 16, 5>(p + 32, w + 160);
    put<std::uint32_t, 4, 4>(p + 48, w + 240);
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p + 52);
    __builtin_memset(row.field, 0, 32);
  }
};

struct Tq2 : Tq {
  static constexpr int k_block_bytes = 66;
  static SLUICE_INLINE void put(const std::uint8_t* __restrict p, std::uint8_t* __restrict w) noexcept {
    for (int pair = 0; pair < 4; ++pair) {
      for (int m = 0; m < 32; ++m) w[32 * pair + m] = static_cast<std::uint8_t>(p[m] >> 2 * pair & 3);
    }
  }
  static SLUICE_INLINE void put_points(const std::uint8_t* p, std::uint8_t* w) noexcept {
    put(p, w);
    put(p + 32, w + 128);
  }
  static SLUICE_INLINE void expand(const std::uint8_t* p, const GridRow& row) noexcept {
    *row.d = load_as<std::uint16_t>(p + 64);
    __builtin_memset(row.field, 0, 32);
  }
};

}  // namespace
}  // namespace sluice::kernels::simd
