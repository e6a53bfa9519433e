#pragma once

// One activation row (decode) with 256 bits: every weight row of a tile is multiplied where it lies, in the
// order in which the format unpacks, and eight rows are folded into one vector of sums, one row a lane. The
// integers are exact, so the bits are those of the panels. Include after panel_dot.hpp; formats that gain by
// it have a RowDot in their headers, behind SLUICE_ROW_DOT_256.
#define SLUICE_ROW_DOT_256

namespace sluice::kernels::simd {
namespace {

/// Sums of the lanes of rows 0..3 and of rows 4..7 for each 128-bit part.
struct Folded {
  Ints low, high;
  explicit SLUICE_INLINE Folded(const Ints (&v)[8]) noexcept
      : low(_mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]))),
        high(_mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]))) {}
  /// Lane r is the sum of row r over the first or the second half of its vector.
  SLUICE_INLINE Ints first() const noexcept { return _mm256_permute2x128_si256(low, high, 0x20); }
  SLUICE_INLINE Ints second() const noexcept { return _mm256_permute2x128_si256(low, high, 0x31); }
  SLUICE_INLINE Ints both() const noexcept { return add32(first(), second()); }
};

SLUICE_INLINE Ints load_any(const void* p) noexcept {
  return _mm256_loadu_si256(static_cast<const Ints*>(p));
}
/// Products of unsigned and signed bytes, added in pairs to 16 bits; they must fit.
SLUICE_INLINE Ints pairs(Ints w, Ints x) noexcept {
  return _mm256_maddubs_epi16(w, x);
}
SLUICE_INLINE std::uint16_t load_u16(const std::uint8_t* p) noexcept {
  std::uint16_t v;
  __builtin_memcpy(&v, p, 2);
  return v;
}
/// f16 scales of eight rows.
SLUICE_INLINE Floats halves_to_floats(const std::uint16_t* d) noexcept {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(d)));
}

}  // namespace
}  // namespace sluice::kernels::simd
