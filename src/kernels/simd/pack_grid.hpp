#pragma once

// Formats whose elements are points of a codebook (IQ1, IQ2, IQ3) or base-3 digits (TQ): one row of one block
// as bytes. Table lookups of four or eight bytes serve every instruction set; gathers are no faster on x86,
// and NEON has none. Include after pack.hpp.
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

struct alignas(64) GridRows {
  std::uint8_t w[k_lanes][256];     ///< As the format's put_points writes them.
  std::uint8_t signs[k_lanes][32];  ///< One bit per element.
  std::uint32_t scale[k_lanes][8];  ///< Two 16-bit scales for 32 elements.
  std::uint32_t d[k_lanes];         ///< f16.

  /// Calls before_row(pointer) for each row.
  template <class Points, class BeforeRow>
  SLUICE_INLINE void fill(const std::uint8_t* p, std::size_t stride, BeforeRow before_row) noexcept {
    for (int r = 0; r < k_lanes; ++r, p += stride) {
      before_row(p);
      PointWriter<Points>::put(p, w[r]);
      Points::expand(p, {signs[r], scale[r], d + r});
    }
    auto* sign_words = signs[0];
    auto* fields = reinterpret_cast<std::uint8_t*>(scale[0]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i, sign_words += k_vec_bytes, fields += k_vec_bytes) {
      Ints field;
      if constexpr (Points::k_signs == Signs::words) {
        const Ints v = load(sign_words);
        field = srl32<28>(v);
        Ints codes = bit_and(v, set32(0x7F));
        codes = and_or(sll32<1>(v), set32(0x7F00), codes);
        codes = and_or(sll32<2>(v), set32(0x7F0000), codes);
        store(sign_words, with_parity(and_or(sll32<3>(v), set32(0x7F000000), codes)));
      } else {
        field = load(fields);
        if constexpr (Points::k_signs == Signs::codes) store(sign_words, with_parity(load(sign_words)));
      }
      const Ints n = bit_and(bit_or(field, sll32<Points::k_scale_shift>(field)), set32(Points::k_scale_mask));
      store(fields, bit_or(sll32<1>(n), set32(0x00010001)));
    }
  }

  /// Sign codes of seven bits, one a byte: the eighth bit is the parity of the others.
  static SLUICE_INLINE Ints with_parity(Ints codes) noexcept {
    Ints v = bit_xor(codes, srl32<4>(codes));
    v = bit_xor(v, srl32<2>(v));
    v = bit_xor(v, srl32<1>(v));
    return and_or(sll32<7>(v), set8(0x80), codes);
  }

  template <class Points>
  SLUICE_INLINE Floats block_scales() const noexcept {
    return mulf(half_to_float(load(d)), setf(Points::k_factor));
  }
};

template <class Points>
struct Grid {
  static constexpr int k_block_bytes = Points::k_block_bytes, k_max = Points::k_max;
  static constexpr int k_sub_groups = Points::k_sub_groups;
  static constexpr bool k_wide = false;
  static constexpr SumUse k_sums = SumUse::offset;

  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, KPanel& panel,
                                 Sink sink) noexcept {
    GridRows rows;
    rows.fill<Points>(p, stride, [](const std::uint8_t*) noexcept {});
    storef(panel.d, rows.block_scales<Points>());
    const Eight scales(transpose32(reinterpret_cast<const std::uint8_t*>(rows.scale[0]), 32));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      store(panel.pair + i * k_vec_bytes, mullo16(scales.at[i], set16(-Points::k_offset)));
      std::uint8_t* to = panel.scale + i * (8 / k_sub_groups) * k_vec_bytes;
      store(to, unsigned_scale<0>(scales.at[i]));
      if constexpr (k_sub_groups == 4) store(to + k_vec_bytes, unsigned_scale<2>(scales.at[i]));
    }
    if constexpr (Points::k_signs == Signs::none) {
      put_groups(rows, sink, [](Ints v, int, int) noexcept { return v; });
    } else {
      const Eight signs(transpose32(rows.signs[0], 32));
      const Ints offset = set8(Points::k_offset);
      const Ints even = set32(0x08040201), odd = set32(static_cast<int>(0x80402010));
      put_groups(rows, sink, [&](Ints v, int c, int g) noexcept {
        const Ints n = signs.at[c];
        const Ints bytes[4] = {pick<0, 0, 0, 0>(n), pick<1, 1, 1, 1>(n), pick<2, 2, 2, 2>(n),
                               pick<3, 3, 3, 3>(n)};
        return sub_or_add8(offset, v, bytes[g / 2], g % 2 == 0 ? even : odd);
      });
    }
  }

 private:
  /// Hands on group g of the c-th 32 elements as stored(v, c, g).
  template <class Sink, class Stored>
  static SLUICE_INLINE void put_groups(const GridRows& rows, Sink& sink, Stored stored) noexcept {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const Eight v(transpose32(rows.w[0] + 32 * c, sizeof rows.w[0]));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) sink.put(8 * c + g, stored(v.at[g], c, g));
    }
  }
};

}  // namespace
}  // namespace sluice::kernels::simd
