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

alignas(16) constexpr std::int8_t k_iq2_magnitudes[16] = {8, 25, 43};
alignas(16) constexpr std::int8_t k_iq3_xxs_magnitudes[16] = {4, 12, 20, 28, 36, 44, 52, 62};
alignas(16) constexpr std::int8_t k_iq3_s_magnitudes[16] = {1, 3, 5, 7, 9, 11, 13, 15};

/// The 32 bytes at p, as 16 bits each.
SLUICE_INLINE Ints load_bytes16(const std::uint8_t* p) noexcept {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

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

}  // namespace
}  // namespace sluice::kernels::simd
