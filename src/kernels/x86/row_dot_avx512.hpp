#pragma once

// One activation row (decode) with AVX-512. Nothing is shared among activation rows, so unpacking into panels
// would cost more than the products: here every weight row of a tile is multiplied where it lies, whole
// vectors of elements at a time, with the activations held in registers in the order in which the format
// unpacks. Sixteen rows are then folded into one vector of sums, one row a lane, and continue the chain that
// panel_dot.hpp describes: the integers are exact, so the bits are the same. Include after panel_dot.hpp; the
// formats have their RowDot in their headers, behind SLUICE_AVX512_ROW_DOT.
#define SLUICE_AVX512_ROW_DOT

namespace sluice::kernels::simd {
namespace {

/// [sum of a, of b, of c, of d] for each 128-bit part.
SLUICE_INLINE Ints fold4(Ints a, Ints b, Ints c, Ints d) noexcept {
  const Ints ab = add32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const Ints cd = add32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return add32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}
SLUICE_INLINE Ints even_parts(Ints a, Ints b) noexcept {
  return _mm512_shuffle_i32x4(a, b, 0x88);
}
SLUICE_INLINE Ints odd_parts(Ints a, Ints b) noexcept {
  return _mm512_shuffle_i32x4(a, b, 0xDD);
}

/// Asks for Bytes at the same place of four neighbouring rows.
template <int Bytes>
SLUICE_INLINE void prefetch4(const std::uint8_t* p, std::size_t stride, std::size_t stride3) noexcept {
#pragma GCC unroll 4
  for (int i = 0; i < Bytes; i += 64) {
    __builtin_prefetch(p + i);
    __builtin_prefetch(p + stride + i);
    __builtin_prefetch(p + 2 * stride + i);
    __builtin_prefetch(p + stride3 + i);
  }
}

/// What a step of 256 elements asks for in each row. More than most formats have in a step: the next step's
/// beginning comes that much earlier, which gains more than asking for it twice costs.
constexpr int k_step_ahead_bytes = 256;

/// Asks for the j-th quarter of BlockBytes of each of 16 rows, at next_tile.
template <int BlockBytes>
SLUICE_INLINE void prefetch_quarter(std::uintptr_t next_tile, int j) noexcept {
  constexpr int n_lines = (4 * BlockBytes + 63) / 64;
  const auto* p = reinterpret_cast<const std::uint8_t*>(opaque(next_tile + j * (n_lines * 64)));
#pragma GCC unroll 16
  for (int i = 0; i < n_lines; ++i) __builtin_prefetch(p + 64 * i);
}

/// Calls row(pointer, index) for the 16 rows of a tile; part k of v0..v3 then holds the folded part k of rows
/// 0..3, 4..7, 8..11 and 12..15. AheadBytes of each row are asked for at x.ahead bytes behind p, four rows at
/// a time: in one go, what fits no fill buffer would hold up the arithmetic. Formats that ask for x.next_tile
/// say the bytes of a row's block and how many to ask for ahead then.
template <int AheadBytes, int TileBlockBytes = 0, int TileAheadBytes = 0, class Row>
SLUICE_INLINE Quad fold_rows(const std::uint8_t* p, std::size_t stride, const XView& x, Row row) noexcept {
  const std::size_t stride3 = opaque(3 * stride);
  Ints v[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const std::uint8_t* at = opaque(p + 4 * j * stride);
    const std::uint8_t* later = opaque(at + x.ahead);
    if (TileBlockBytes != 0 && x.next_tile != 0) {
      prefetch_quarter<TileBlockBytes>(x.next_tile, j);
      prefetch4<TileAheadBytes>(later, stride, stride3);
    } else {
      prefetch4<AheadBytes>(later, stride, stride3);
    }
    const Ints a = row(at, 4 * j), b = row(at + stride, 4 * j + 1);
    const Ints c = row(at + 2 * stride, 4 * j + 2), d = row(at + stride3, 4 * j + 3);
    v[j] = fold4(a, b, c, d);
  }
  return {v[0], v[1], v[2], v[3]};
}

/// All four parts belong to one block: lane r is the sum of row r.
SLUICE_INLINE Ints one_block(const Quad& v) noexcept {
  const Ints a = add32(even_parts(v.v0, v.v1), odd_parts(v.v0, v.v1));
  const Ints b = add32(even_parts(v.v2, v.v3), odd_parts(v.v2, v.v3));
  return add32(even_parts(a, b), odd_parts(a, b));
}

/// 32 bytes at a and 32 at b.
SLUICE_INLINE Ints load_halves(const void* a, const void* b) noexcept {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(a))),
                            _mm256_loadu_si256(static_cast<const __m256i*>(b)), 1);
}
SLUICE_INLINE Ints load_any(const void* p) noexcept {
  return _mm512_loadu_si512(p);
}
/// 32 bytes in both halves.
SLUICE_INLINE Ints load_twice(const void* p) noexcept {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
/// Dwords of the lower and of the upper half.
SLUICE_INLINE Ints set_halves(int low, int high) noexcept {
  return _mm512_inserti64x4(_mm512_set1_epi32(low), _mm256_set1_epi32(high), 1);
}
/// Products of unsigned and signed bytes, added in pairs to 16 bits; they must fit.
SLUICE_INLINE Ints pairs(Ints w, Ints x) noexcept {
  return _mm512_maddubs_epi16(w, x);
}
/// Rotates the dwords of the lower half to the left by Low and those of the upper by High.
template <int Low, int High>
SLUICE_INLINE Ints rotate(Ints v) noexcept {
  return _mm512_rolv_epi32(v, set_halves(Low & 31, High & 31));
}
/// f16 scales of 16 rows.
SLUICE_INLINE Floats halves_to_floats(const std::uint16_t* d) noexcept {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(d)));
}
SLUICE_INLINE std::uint16_t load_u16(const std::uint8_t* p) noexcept {
  std::uint16_t v;
  __builtin_memcpy(&v, p, 2);
  return v;
}

/// 256 activations in the order of a nibble format: [0-31 | 64-95], [32-63 | 96-127], and the same of
/// 128-255.
struct NibbleOrder {
  Ints q[4];
  explicit SLUICE_INLINE NibbleOrder(const std::uint8_t* x) noexcept
      : q{load_halves(x, x + 64), load_halves(x + 32, x + 96), load_halves(x + 128, x + 192),
          load_halves(x + 160, x + 224)} {}
};
/// The same for two-bit formats: [32j .. | 128 + 32j ..].
struct CrumbOrder {
  Ints q[4];
  explicit SLUICE_INLINE CrumbOrder(const std::uint8_t* x) noexcept
      : q{load_halves(x, x + 128), load_halves(x + 32, x + 160), load_halves(x + 64, x + 192),
          load_halves(x + 96, x + 224)} {}
};

/// Sums of 32 activations, as pairs of 16 bits in every lane.
struct Sums32 {
  Ints pair[4];
  explicit SLUICE_INLINE Sums32(const std::uint8_t* sum) noexcept {
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum));
    const __m128i s = _mm256_cvtepi32_epi16(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
    pair[0] = _mm512_broadcastd_epi32(s);
    pair[1] = _mm512_broadcastd_epi32(_mm_shuffle_epi32(s, 0x55));
    pair[2] = _mm512_broadcastd_epi32(_mm_shuffle_epi32(s, 0xAA));
    pair[3] = _mm512_broadcastd_epi32(_mm_shuffle_epi32(s, 0xFF));
  }
};

/// The byte shuffle that makes, of a lane's four bytes, 16-bit numbers of byte Low in the lower half of the
/// vector and of byte High in the upper.
template <int Low, int High>
SLUICE_INLINE Ints spread(Ints v) noexcept {
  constexpr int low = Low | 0x80 << 8 | Low << 16 | static_cast<int>(0x80u << 24);
  constexpr int high = High | 0x80 << 8 | High << 16 | static_cast<int>(0x80u << 24);
  return _mm512_shuffle_epi8(v, set_halves(low, high));
}

/// 128 activations in the order of formats whose 16 bytes hold 32 neighbouring elements: the first sixteen of
/// four such blocks in `low`, the others in `high`.
struct BlockNibbleOrder {
  Ints low, high;
  explicit SLUICE_INLINE BlockNibbleOrder(const std::uint8_t* x) noexcept {
    const Ints a = load_any(x), b = load_any(x + 64);
    low = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), b);
    high = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15), b);
  }
};

/// Sixteen 16-bit scales of a row, for vectors of four sub-blocks of 16 elements each.
template <int S0, int S1, int S2, int S3>
SLUICE_INLINE Ints scale_runs(__m256i scales) noexcept {
  const auto two = [](int s) { return s | s << 16; };
  const __m256i low = _mm256_inserti128_si256(_mm256_set1_epi32(two(S0)), _mm_set1_epi32(two(S1)), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_set1_epi32(two(S2)), _mm_set1_epi32(two(S3)), 1);
  const Ints index = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  return _mm512_permutexvar_epi16(index, _mm512_castsi256_si512(scales));
}

/// -(sum over sub-blocks of scale * sum of activations) << Shift, spread over the lanes.
template <int Shift>
SLUICE_INLINE Ints offset_of(__m256i scales, __m256i sums) noexcept {
  const __m256i v = _mm256_slli_epi32(_mm256_madd_epi16(scales, sums), Shift);
  return _mm512_sub_epi32(zero(), _mm512_zextsi256_si512(v));
}

}  // namespace
}  // namespace sluice::kernels::simd
