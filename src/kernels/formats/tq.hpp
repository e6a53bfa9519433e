#pragma once

// TQ1_0 and TQ2_0: ternary digits with one scale.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// Five base-3 digits a byte, stored as a fraction of 256 rounded up, so that the n-th digit is the whole
/// part of 3 times the fraction left after multiplying by 3^n. qs[0..31] hold elements 0-159 (digit n of byte
/// m is element 32 n + m), qs[32..47] elements 160-239 (160 + 16 n + m), qh elements 240-255 (240 + 4 n + m,
/// four digits).
struct BlockTq1_0 {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t qs[48];
  std::uint8_t qh[4];
  Half d;
};

/// Bit pairs, ordered as in Q2_K.
struct BlockTq2_0 {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t qs[64];
  Half d;
};

/// Base-3 digit n of a byte: multiplying by 3^n modulo 256 leaves the fraction after the first n digits.
inline int base3_digit(std::uint8_t byte, std::size_t n) noexcept {
  constexpr std::uint8_t k_powers[5] = {1, 3, 9, 27, 81};
  const auto fraction = static_cast<std::uint8_t>(byte * k_powers[n]);
  return fraction * 3 >> 8;
}

inline void put_no_scales(std::int8_t* out) noexcept {
  for (std::size_t s = 0; s < 16; ++s) out[s] = 1;
}

inline void unpack(const BlockTq1_0& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  put_no_scales(out.scale);
  const auto put = [&out](std::uint8_t byte, std::size_t digit, std::size_t element) {
    out.q[element] = static_cast<std::int8_t>(base3_digit(byte, digit) - 1);
  };
  for (std::size_t n = 0; n < 5; ++n) {
    for (std::size_t m = 0; m < 32; ++m) put(block.qs[m], n, 32 * n + m);
    for (std::size_t m = 0; m < 16; ++m) put(block.qs[32 + m], n, 160 + 16 * n + m);
  }
  for (std::size_t n = 0; n < 4; ++n) {
    for (std::size_t m = 0; m < 4; ++m) put(block.qh[m], n, 240 + 4 * n + m);
  }
}

inline void unpack(const BlockTq2_0& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  put_no_scales(out.scale);
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint8_t* qs = block.qs + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l) {
      out.q[32 * g + l] = static_cast<std::int8_t>((qs[l] >> 2 * (g % 4) & 3) - 1);
    }
  }
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

/// Elements -1, 0 and 1 (TQ2_0 can also say 2), stored larger by 1.
struct Tq {
  static constexpr int k_offset = 1, k_max = 3, k_sub_groups = 8;
  static constexpr float k_factor = 1.0f;
  static constexpr Signs k_signs = Signs::none;
  static constexpr int k_scale_shift = 0, k_scale_mask = 0;
};

struct Tq1_0 : Tq {
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

struct Tq2_0 : Tq {
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

#endif
