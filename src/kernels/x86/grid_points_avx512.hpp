#pragma once

// Points of the codebooks with AVX-512: 32 packed points at a time are looked up in the registers, then their
// digits are spread over bytes. Include after pack_grid.hpp.

namespace sluice::kernels::simd {
namespace {

/// 16-bit entries of a table of N by 16-bit indices.
template <int N>
SLUICE_INLINE Ints look_up16(const std::uint16_t* table, Ints index) noexcept {
  if constexpr (N == 64) {
    return _mm512_permutex2var_epi16(load(table), index, load(table + 32));
  } else {
    const __mmask32 upper = _mm512_test_epi16_mask(index, set16(N / 2));
    return _mm512_mask_blend_epi16(upper, look_up16<N / 2>(table, index),
                                   look_up16<N / 2>(table + N / 2, index));
  }
}

struct alignas(64) Words {
  std::uint16_t at[32];
};
/// Word i is (i / Divisor % Modulus) * Factor.
template <int Divisor, int Modulus, int Factor>
constexpr Words pattern() noexcept {
  Words words{};
  for (int i = 0; i < 32; ++i) words.at[i] = static_cast<std::uint16_t>(i / Divisor % Modulus * Factor);
  return words;
}

/// Bytes of 32 packed points of Elements digits each, which are ranks in `magnitudes`.
template <int Elements>
SLUICE_INLINE void put_digits(Ints points, const std::int8_t (&magnitudes)[16], std::uint8_t* w) noexcept {
  constexpr int words = Elements / 2, bits = Elements == 8 ? 2 : 3;  // of 16 bits per point; of a digit
  static constexpr Words source = pattern<words, 32, 1>(), shift = pattern<1, words, 2 * bits>();
  const Ints table = table16(magnitudes);
  const Ints low = set16((1 << bits) - 1), high = set16(((1 << bits) - 1) << 8);
#pragma GCC unroll 4
  for (int c = 0; c < words; ++c) {
    Ints v = _mm512_permutexvar_epi16(_mm512_add_epi16(load(&source), set16(32 / words * c)), points);
    v = _mm512_srlv_epi16(v, load(&shift));
    const Ints digits = and_or(_mm512_slli_epi16(v, 8 - bits), high, bit_and(v, low));
    store(w + 64 * c, lookup(table, digits));
  }
}

/// The 32 bytes at p, as 16 bits each.
SLUICE_INLINE Ints load_bytes16(const std::uint8_t* p) noexcept {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

}  // namespace
}  // namespace sluice::kernels::simd
