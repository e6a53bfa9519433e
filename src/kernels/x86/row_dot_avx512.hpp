#pragma once

// One activation row (decode) with AVX-512. Nothing is shared among activation rows, so unpacking into panels
// would cost more than the products: here every weight row of a tile is multiplied where it lies, whole
// vectors of elements at a time, with the activations held in registers in the order in which the format
// unpacks. Sixteen rows are then folded into one vector of sums, one row a lane, and continue the chain that
// panel_dot.hpp describes: the integers are exact, so the bits are the same. Include after panel_dot.hpp.

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

/// Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scales and minimums.
template <class Format, bool HasFifthBit>
struct K4RowDot {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::int32_t scales[2][k_lanes];
    const Quad head = transpose(p, stride);
    const Floats d_x = broadcast_float(x.d);
    const Ints six = set8(0x3F), mask = set8(0x0F), top = set8(0x30), fifth = set8(0x10);
    store(scales[0], bit_and(head.v1, six));
    store(scales[1], and_or(srl32<2>(head.v1), top, bit_and(head.v3, mask)));
    const Ints mins[2] = {bit_and(head.v2, six),
                          and_or(srl32<2>(head.v2), top, bit_and(srl32<4>(head.v3), mask))};
    const Sums32 x_sums(x.sum);
    Ints low = zero();
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      low = dot16(low, pick<0, -1, 1, -1>(mins[i]), x_sums.pair[2 * i]);
      low = dot16(low, pick<2, -1, 3, -1>(mins[i]), x_sums.pair[2 * i + 1]);
    }
    const NibbleOrder order(x.q);
    constexpr int tile_block_bytes = HasFifthBit ? 0 : Format::k_block_bytes;
    const Ints total = one_block(fold_rows<k_step_ahead_bytes, tile_block_bytes, k_step_ahead_bytes>(
        p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          const std::uint8_t* q = row + (HasFifthBit ? 48 : 16);
          const Ints v0 = load_any(q), v1 = load_any(q + 64);
          Ints w[4] = {bit_and(v0, mask), bit_and(srl32<4>(v0), mask), bit_and(v1, mask),
                       bit_and(srl32<4>(v1), mask)};
          if constexpr (HasFifthBit) {  // bit s of a byte belongs to sub-block s
            const Ints high = load_twice(row + 16);
            w[0] = and_or(rotate<4, 2>(high), fifth, w[0]);
            w[1] = and_or(rotate<3, 1>(high), fifth, w[1]);
            w[2] = and_or(rotate<0, -2>(high), fifth, w[2]);
            w[3] = and_or(rotate<-1, -3>(high), fifth, w[3]);
          }
          const Ints s0 = broadcast32(scales[0] + r), s1 = broadcast32(scales[1] + r);
          Ints a = dot16(zero(), pairs(w[0], order.q[0]), spread<0, 2>(s0));
          a = dot16(a, pairs(w[1], order.q[1]), spread<1, 3>(s0));
          a = dot16(a, pairs(w[2], order.q[2]), spread<0, 2>(s1));
          return dot16(a, pairs(w[3], order.q[3]), spread<1, 3>(s1));
        }));
    const Floats y = fma(to_float(total), mulf(half_to_float(head.v0), d_x), loadf(sums));
    storef(sums, fnma(to_float(low), mulf(half_to_float(srl32<16>(head.v0)), d_x), y));
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

struct Q6KRowDot {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::uint16_t d[k_lanes];
    const Ints mask = set8(0x0F), top = set8(0x30);
    const Ints q[4] = {load_any(x.q), load_any(x.q + 64), load_any(x.q + 128), load_any(x.q + 192)};
    const __m256i x_sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sum));
    const Ints total = one_block(fold_rows<k_step_ahead_bytes, Q6K::k_block_bytes, 320>(
        p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          d[r] = load_u16(row + 208);
          const __m256i s =
              _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 192)));
          const Ints v0 = load_any(row), v1 = load_any(row + 64);
          const Ints h0 = load_twice(row + 128), h1 = load_twice(row + 160);
          const Ints w0 = and_or(rotate<4, 2>(h0), top, bit_and(v0, mask));
          const Ints w1 = and_or(rotate<0, -2>(h0), top, bit_and(srl32<4>(v0), mask));
          const Ints w2 = and_or(rotate<4, 2>(h1), top, bit_and(v1, mask));
          const Ints w3 = and_or(rotate<0, -2>(h1), top, bit_and(srl32<4>(v1), mask));
          Ints a = dot16(offset_of<5>(s, x_sums), pairs(w0, q[0]), scale_runs<0, 1, 2, 3>(s));
          a = dot16(a, pairs(w1, q[1]), scale_runs<4, 5, 6, 7>(s));
          a = dot16(a, pairs(w2, q[2]), scale_runs<8, 9, 10, 11>(s));
          return dot16(a, pairs(w3, q[3]), scale_runs<12, 13, 14, 15>(s));
        }));
    storef(sums, fma(to_float(total), mulf(halves_to_floats(d), broadcast_float(x.d)), loadf(sums)));
  }
};

struct Q2KRowDot {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    const Ints two = set8(0x03), four = set8(0x0F);
    const Quad head = transpose(p, stride);
    const Ints heads[4] = {head.v0, head.v1, head.v2, head.v3};
    Ints low = zero();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Ints mins = bit_and(srl32<4>(heads[i]), four);
      low = dot16(low, pick<0, -1, 1, -1>(mins), broadcast32(x.sum + 8 * i));
      low = dot16(low, pick<2, -1, 3, -1>(mins), broadcast32(x.sum + 8 * i + 4));
    }
    const CrumbOrder order(x.q);
    const Ints total =
        one_block(fold_rows<k_step_ahead_bytes>(p, stride, x, [&](const std::uint8_t* row, int) noexcept {
          const __m128i scales =
              _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)), _mm_set1_epi8(0x0F));
          const __m256i s = _mm256_cvtepu8_epi16(scales);
          const Ints v = load_any(row + 16);
          Ints a = dot16(zero(), pairs(bit_and(v, two), order.q[0]), scale_runs<0, 1, 8, 9>(s));
          a = dot16(a, pairs(bit_and(srl32<2>(v), two), order.q[1]), scale_runs<2, 3, 10, 11>(s));
          a = dot16(a, pairs(bit_and(srl32<4>(v), two), order.q[2]), scale_runs<4, 5, 12, 13>(s));
          return dot16(a, pairs(bit_and(srl32<6>(v), two), order.q[3]), scale_runs<6, 7, 14, 15>(s));
        }));
    const Ints tail = transpose(p + 68, stride).v3;
    const Floats d_x = broadcast_float(x.d);
    const Floats y = fma(to_float(total), mulf(half_to_float(tail), d_x), loadf(sums));
    storef(sums, fnma(to_float(low), mulf(half_to_float(srl32<16>(tail)), d_x), y));
  }
};

struct Q3KRowDot {
  /// The sixteen 6-bit scales, less 32, from their 12 bytes.
  static SLUICE_INLINE __m256i scales_of(const std::uint8_t* p) noexcept {
    std::uint32_t a, b, c;
    __builtin_memcpy(&a, p, 4);
    __builtin_memcpy(&b, p + 4, 4);
    __builtin_memcpy(&c, p + 8, 4);
    constexpr std::uint32_t four = 0x0F0F0F0F, two = 0x03030303;
    const auto dword = [](std::uint32_t v) { return static_cast<int>(v); };
    const __m128i bytes = _mm_setr_epi32(
        dword((a & four) | (c & two) << 4), dword((b & four) | (c >> 2 & two) << 4),
        dword((a >> 4 & four) | (c >> 4 & two) << 4), dword((b >> 4 & four) | (c >> 6 & two) << 4));
    return _mm256_cvtepi8_epi16(_mm_sub_epi8(bytes, _mm_set1_epi8(32)));
  }
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::uint16_t d[k_lanes];
    const Ints two = set8(0x03), third = set8(0x04);
    const CrumbOrder order(x.q);
    const __m256i x_sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sum));
    const Ints total =
        one_block(fold_rows<k_step_ahead_bytes>(p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          d[r] = load_u16(row + 108);
          const __m256i s = scales_of(row + 96);
          const Ints high = load_twice(row);  // bit 4 half + j: third bit of run j of the half
          const Ints v = load_any(row + 32);
          const Ints w0 = and_or(rotate<2, -2>(high), third, bit_and(v, two));
          const Ints w1 = and_or(rotate<1, -3>(high), third, bit_and(srl32<2>(v), two));
          const Ints w2 = and_or(rotate<0, -4>(high), third, bit_and(srl32<4>(v), two));
          const Ints w3 = and_or(rotate<-1, -5>(high), third, bit_and(srl32<6>(v), two));
          Ints a = dot16(offset_of<2>(s, x_sums), pairs(w0, order.q[0]), scale_runs<0, 1, 8, 9>(s));
          a = dot16(a, pairs(w1, order.q[1]), scale_runs<2, 3, 10, 11>(s));
          a = dot16(a, pairs(w2, order.q[2]), scale_runs<4, 5, 12, 13>(s));
          return dot16(a, pairs(w3, order.q[3]), scale_runs<6, 7, 14, 15>(s));
        }));
    storef(sums, fma(to_float(total), mulf(halves_to_floats(d), broadcast_float(x.d)), loadf(sums)));
  }
};

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

/// The signed values are biased to be unsigned; pairs of their products would not fit 16 bits.
struct Iq4XsRowDot {
  /// Signed byte k of a lane as a 32-bit number in part k.
  static SLUICE_INLINE Ints spread_signed(Ints v) noexcept {
    const auto part = [](int k) noexcept { return _mm_set1_epi32(static_cast<int>(0x00808080u) | k << 24); };
    Ints index = _mm512_castsi128_si512(part(0));
    index = _mm512_inserti32x4(index, part(1), 1);
    index = _mm512_inserti32x4(index, part(2), 2);
    index = _mm512_inserti32x4(index, part(3), 3);
    return _mm512_srai_epi32(_mm512_shuffle_epi8(v, index), 24);
  }
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    alignas(64) std::int32_t scales[2][k_lanes];
    const Quad head = transpose(p, stride);
    const Ints mask = set8(0x0F), top = set8(0x30), bias = set8(32);
    Ints high = srl32<16>(head.v0);  // eight 2-bit fields; spread two of them to each byte
    high = bit_and(bit_or(high, sll32<8>(high)), set32(0x00FF00FF));
    high = bit_and(bit_or(high, sll32<4>(high)), mask);
    const Ints even = sub8(and_or(sll32<4>(high), top, bit_and(head.v1, mask)), bias);
    const Ints odd = sub8(and_or(sll32<2>(high), top, bit_and(srl32<4>(head.v1), mask)), bias);
    const Ints all[2] = {bit_or(pick<0, -1, 1, -1>(even), pick<-1, 0, -1, 1>(odd)),
                         bit_or(pick<2, -1, 3, -1>(even), pick<-1, 2, -1, 3>(odd))};
    // A byte in the high half of 16 bits is 256 times its value; k_wide_bias is half of that.
    static_assert(k_wide_bias == 128);
    const Sums32 x_sums(x.sum);
    Ints low = zero();
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      store(scales[i], all[i]);
      low = dot16(low, sra16<1>(pick<-1, 0, -1, 1>(all[i])), x_sums.pair[2 * i]);
      low = dot16(low, sra16<1>(pick<-1, 2, -1, 3>(all[i])), x_sums.pair[2 * i + 1]);
    }

    const Ints table = bias_wide(iq4_values());
    const BlockNibbleOrder x0(x.q), x1(x.q + 128);
    const Ints total =
        one_block(fold_rows<k_step_ahead_bytes>(p, stride, x, [&](const std::uint8_t* row, int r) noexcept {
          const auto part = [&](Ints v, const BlockNibbleOrder& order, int i) noexcept {
            const Ints dot = dot4(dot4(zero(), lookup(table, bit_and(v, mask)), order.low),
                                  lookup(table, bit_and(srl32<4>(v), mask)), order.high);
            return mullo32(dot, spread_signed(broadcast32(scales[i] + r)));
          };
          return add32(part(load_any(row + 8), x0, 0), part(load_any(row + 72), x1, 1));
        }));
    const Ints exact = _mm512_sub_epi32(total, low);
    const Floats d = mulf(half_to_float(head.v0), broadcast_float(x.d));
    storef(sums, fma(to_float(exact), d, loadf(sums)));
  }
};

/// How 32-element formats give their elements of four neighbouring blocks: [16 | 16 | 16 | 16] low nibbles in
/// `low`, high ones in `high`.
struct NibblePair {
  Ints low, high;
};

template <int First, int BlockBytes>
SLUICE_INLINE NibblePair load_nibbles(const std::uint8_t* row) noexcept {
  const auto at = [row](int block) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + block * BlockBytes + First));
  };
  Ints v = _mm512_castsi128_si512(at(0));
  v = _mm512_inserti32x4(v, at(1), 1);
  v = _mm512_inserti32x4(v, at(2), 2);
  v = _mm512_inserti32x4(v, at(3), 3);
  const Ints mask = set8(0x0F);
  return {bit_and(v, mask), bit_and(srl32<4>(v), mask)};
}

/// Adds the fifth bits: those of elements 0..31 of a block are the 32 bits at First.
template <int First, int BlockBytes>
SLUICE_INLINE void add_fifth_bits(const std::uint8_t* row, NibblePair& w) noexcept {
  std::int32_t bits[4];
#pragma GCC unroll 4
  for (int block = 0; block < 4; ++block) __builtin_memcpy(bits + block, row + block * BlockBytes + First, 4);
  const Ints lanes = broadcast128(_mm_setr_epi32(bits[0], bits[1], bits[2], bits[3]));
  const auto index = [](int byte) noexcept {  // part k takes two bytes of its dword k, eight times each
    const auto part = [byte](int k) noexcept {
      const auto a = static_cast<char>(4 * k + byte), b = static_cast<char>(4 * k + byte + 1);
      return _mm_setr_epi8(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b);
    };
    Ints v = _mm512_castsi128_si512(part(0));
    v = _mm512_inserti32x4(v, part(1), 1);
    v = _mm512_inserti32x4(v, part(2), 2);
    return _mm512_inserti32x4(v, part(3), 3);
  };
  const Ints bit = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ull));
  w.low = or_16_where(w.low, _mm512_shuffle_epi8(lanes, index(0)), bit);
  w.high = or_16_where(w.high, _mm512_shuffle_epi8(lanes, index(2)), bit);
}

/// Elements of four blocks of a row, unsigned; the true value is stored - Format::k_offset.
template <class Format>
SLUICE_INLINE NibblePair load_row(const std::uint8_t* row) noexcept {
  constexpr int bytes = Format::k_block_bytes;
  if constexpr (requires { Format::k_fifth_bits_at; }) {
    NibblePair w = load_nibbles<Format::k_fifth_bits_at + 4, bytes>(row);
    add_fifth_bits<Format::k_fifth_bits_at, bytes>(row, w);
    return w;
  } else {
    NibblePair w = load_nibbles<bytes - 16, bytes>(row);
    if constexpr (requires { Format::table(); }) {
      const Ints table = Format::table();
      w = {lookup(table, w.low), lookup(table, w.high)};
    }
    return w;
  }
}

/// Scales of 16 rows for up to eight blocks; with the minimums beside them where a format has those.
template <class Format>
struct Q32Scales {
  using Head = std::conditional_t<Format::k_has_min, std::uint32_t, std::uint16_t>;
  alignas(64) Head head[8][k_lanes];

  SLUICE_INLINE void fill(const std::uint8_t* p, std::size_t stride, std::size_t n_blocks) noexcept {
    for (int r = 0; r < k_lanes; ++r, p += stride) {
      const std::uint8_t* block = p;
      for (std::size_t b = 0; b < n_blocks; ++b, block += Format::k_block_bytes)
        __builtin_memcpy(&head[b][r], block, sizeof(Head));
    }
  }
  SLUICE_INLINE Floats scale(std::size_t b) const noexcept {
    if constexpr (Format::k_has_min) {
      return half_to_float(load(head[b]));
    } else if constexpr (requires { Format::k_exponent_scale; }) {
      const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(head[b]));
      return exponent_to_float(bit_and(_mm512_cvtepu16_epi32(v), set32(0xFF)));
    } else {
      return halves_to_floats(head[b]);
    }
  }
  SLUICE_INLINE Floats min(std::size_t b) const noexcept { return half_to_float(srl32<16>(load(head[b]))); }
};

/// Continues the chain of block b with its integer, as dot_q32 does.
template <class Format>
SLUICE_INLINE Floats add_block(Floats y, Ints dot, const Q32Scales<Format>& scales, const XView& x,
                               std::size_t b) noexcept {
  const Ints sum = broadcast32(x.sum + 4 * b);
  const Floats d_x = broadcast_float(x.d + 4 * b);
  Ints total = dot;
  if constexpr (Format::k_offset != 0) total = add32(total, negative_multiple<Format::k_offset>(sum));
  y = fma(to_float(total), mulf(scales.scale(b), d_x), y);
  if constexpr (Format::k_has_min) y = fma(mulf(to_float(sum), d_x), scales.min(b), y);
  return y;
}

/// Formats of 32 elements in nibbles, four blocks at a time.
template <class Format>
struct NibbleRowDot {
  static SLUICE_INLINE void four(const std::uint8_t* p, std::size_t stride, const XView& x,
                                 const std::uint8_t* q, Ints (&dots)[4]) noexcept {
    const BlockNibbleOrder order(q);
    const Quad v =
        fold_rows<k_step_ahead_bytes / 2>(p, stride, x, [&](const std::uint8_t* row, int) noexcept {
          const NibblePair w = load_row<Format>(row);
          return dot4(dot4(zero(), w.low, order.low), w.high, order.high);
        });
    const Ints e0 = even_parts(v.v0, v.v1), o0 = odd_parts(v.v0, v.v1);
    const Ints e1 = even_parts(v.v2, v.v3), o1 = odd_parts(v.v2, v.v3);
    dots[0] = even_parts(e0, e1);
    dots[1] = even_parts(o0, o1);
    dots[2] = odd_parts(e0, e1);
    dots[3] = odd_parts(o0, o1);
  }
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  std::size_t n_blocks, float* sums) noexcept {
    constexpr std::size_t bytes = Format::k_block_bytes;
    Q32Scales<Format> scales;
    scales.fill(p, stride, n_blocks);
    Floats y = loadf(sums);
    std::size_t b = 0;
    for (; b + 4 <= n_blocks; b += 4) {
      Ints dots[4];
      four(p + b * bytes, stride, x, x.q + 32 * b, dots);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) y = add_block(y, dots[i], scales, x, b + i);
    }
    if (b < n_blocks) {  // The rest of a row: missing blocks read as zero and are not added.
      const std::size_t n = n_blocks - b;
      alignas(64) std::uint8_t copy[k_lanes * 4 * bytes] = {}, q[128] = {};
      for (std::size_t r = 0; r < k_lanes; ++r)
        __builtin_memcpy(copy + r * 4 * bytes, p + r * stride + b * bytes, n * bytes);
      __builtin_memcpy(q, x.q + 32 * b, 32 * n);
      Ints dots[4];
      four(copy, 4 * bytes, x, q, dots);
      for (std::size_t i = 0; i < n; ++i) y = add_block(y, dots[i], scales, x, b + i);
    }
    storef(sums, y);
  }
};

struct Q80RowDot {
  static SLUICE_INLINE void two(const std::uint8_t* p, std::size_t stride, const XView& x, Ints q,
                                Ints& first, Ints& second) noexcept {
    const Quad v =
        fold_rows<k_step_ahead_bytes / 4>(p, stride, x, [&](const std::uint8_t* row, int) noexcept {
          return dot4(zero(), bias_wide(load_halves(row + 2, row + 36)), q);
        });
    const Ints a = add32(even_parts(v.v0, v.v1), odd_parts(v.v0, v.v1));
    const Ints b = add32(even_parts(v.v2, v.v3), odd_parts(v.v2, v.v3));
    first = even_parts(a, b);
    second = odd_parts(a, b);
  }
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  std::size_t n_blocks, float* sums) noexcept {
    Q32Scales<Q80> scales;
    scales.fill(p, stride, n_blocks);
    Floats y = loadf(sums);
    Ints first, second;
    std::size_t b = 0;
    for (; b + 2 <= n_blocks; b += 2) {
      two(p + b * 34, stride, x, load_any(x.q + 32 * b), first, second);
      y = add_block(y, first, scales, x, b);
      y = add_block(y, second, scales, x, b + 1);
    }
    if (b < n_blocks) {
      alignas(64) std::uint8_t copy[k_lanes * 68] = {};
      for (std::size_t r = 0; r < k_lanes; ++r) __builtin_memcpy(copy + r * 68, p + r * stride + b * 34, 34);
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.q + 32 * b));
      two(copy, 68, x, _mm512_zextsi256_si512(half), first, second);
      y = add_block(y, first, scales, x, b);
    }
    storef(sums, y);
  }
};

/// Codebook and ternary formats: the rows as bytes, in the order of the elements. The lookups of all rows
/// come first, because a vector load waits for the words that it is made of to reach the cache.
template <class Points>
struct RowDot<Grid<Points>> {
  static constexpr bool k_has_signs = Points::k_signs != Signs::none;
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  float* sums) noexcept {
    GridRows rows;
    // A line or two is all that a step has in a row.
    rows.fill<Points>(p, stride, [&x](const std::uint8_t* row) noexcept {
      __builtin_prefetch(opaque(row + x.ahead));
      __builtin_prefetch(opaque(row + x.ahead + 64));
    });
    const Ints q[4] = {load_any(x.q), load_any(x.q + 64), load_any(x.q + 128), load_any(x.q + 192)};
    const __m256i x_sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sum));
    const auto row_sum = [&](const std::uint8_t* w, int r) noexcept {
      const __m256i s = _mm256_load_si256(reinterpret_cast<const __m256i*>(rows.scale[r]));
      const auto products = [&](int c) noexcept {
        Ints signed_q = q[c];
        if constexpr (k_has_signs) {
          const auto negative = load_as<std::uint64_t>(rows.signs[r] + 8 * c);
          signed_q = _mm512_mask_sub_epi8(q[c], negative, zero(), q[c]);
        }
        return pairs(load(w + 64 * c), signed_q);
      };
      Ints a = zero();
      if constexpr (!k_has_signs) a = offset_of<__builtin_ctz(Points::k_offset)>(s, x_sums);
      a = dot16(a, products(0), scale_runs<0, 1, 2, 3>(s));
      a = dot16(a, products(1), scale_runs<4, 5, 6, 7>(s));
      a = dot16(a, products(2), scale_runs<8, 9, 10, 11>(s));
      return dot16(a, products(3), scale_runs<12, 13, 14, 15>(s));
    };
    const Ints total = one_block(fold_rows<0>(rows.w[0], sizeof rows.w[0], x, row_sum));
    storef(sums, fma(to_float(total), mulf(rows.block_scales<Points>(), broadcast_float(x.d)), loadf(sums)));
  }
};

template <>
struct RowDot<Q4K> : K4RowDot<Q4K, false> {};
template <>
struct RowDot<Q5K> : K4RowDot<Q5K, true> {};
template <>
struct RowDot<Q6K> : Q6KRowDot {};
template <>
struct RowDot<Q2K> : Q2KRowDot {};
template <>
struct RowDot<Q3K> : Q3KRowDot {};
template <>
struct RowDot<Iq4Xs> : Iq4XsRowDot {};
template <>
struct RowDot<Q80> : Q80RowDot {};
template <>
struct RowDot<Q40> : NibbleRowDot<Q40> {};
template <>
struct RowDot<Q41> : NibbleRowDot<Q41> {};
template <>
struct RowDot<Q50> : NibbleRowDot<Q50> {};
template <>
struct RowDot<Q51> : NibbleRowDot<Q51> {};
template <>
struct RowDot<Iq4Nl> : NibbleRowDot<Iq4Nl> {};
template <>
struct RowDot<Mxfp4> : NibbleRowDot<Mxfp4> {};

}  // namespace
}  // namespace sluice::kernels::simd
