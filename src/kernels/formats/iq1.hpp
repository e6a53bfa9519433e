#pragma once

// IQ1_S and IQ1_M: eight elements are a point of a ternary codebook, moved by an eighth up or down.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {

/// w = d * (2 scale + 1) * (grid + delta), delta = +-1/8. qh, a word per 32 elements: four 3-bit index tops,
/// the scale in bits 12-14, the sign of delta in bit 15.
struct BlockIq1S {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[32];
  Le16 qh[8];
};

/// Same value; a nibble of qh per 8 elements: index top and, in bit 3, the sign of delta. scales: four words,
/// each with four 3-bit scales (per 16 elements) and, in its top nibble, a quarter of the half d (lowest
/// first).
struct BlockIq1M {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t qs[32];
  std::uint8_t qh[16];
  Le16 scales[4];
};

/// Eight times (point + delta), delta = +-1/8.
inline void put_ternary(std::size_t index, bool negative_delta, std::int8_t* out) noexcept {
  const TernaryGrid& point = k_iq1_grid[index];
  const int delta = negative_delta ? -1 : 1;
  for (std::size_t e = 0; e < point.size(); ++e) out[e] = static_cast<std::int8_t>(8 * point[e] + delta);
}

inline void unpack(const BlockIq1S& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  for (std::size_t g = 0; g < 8; ++g) {
    const unsigned word = block.qh[g];
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(word >> 12 & 7u);
    for (std::size_t p = 0; p < 4; ++p) {
      const std::size_t index = block.qs[4 * g + p] | (word >> 3 * p & 7u) << 8;
      put_ternary(index, (word & 0x8000u) != 0, out.q + 32 * g + 8 * p);
    }
  }
}

inline void unpack(const BlockIq1M& block, Unpacked256& out) noexcept {
  unsigned d_bits = 0;
  for (std::size_t s = 0; s < 4; ++s) d_bits |= static_cast<unsigned>(block.scales[s] >> 12) << 4 * s;
  out.d = f16_to_f32(static_cast<std::uint16_t>(d_bits)) * 0.125f;
  for (std::size_t s = 0; s < 16; ++s) out.scale[s] = odd_scale(block.scales[s / 4] >> 3 * (s % 4) & 7u);
  for (std::size_t p = 0; p < 32; ++p) {
    const unsigned nibble = block.qh[p / 2] >> 4 * (p % 2) & 0xfu;
    put_ternary(block.qs[p] | (nibble & 7u) << 8, (nibble & 8u) != 0, out.q + 8 * p);
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

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

}  // namespace
}  // namespace sluice::kernels::simd

#endif
