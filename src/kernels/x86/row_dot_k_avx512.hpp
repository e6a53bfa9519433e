#pragma once

// RowDot of the formats with blocks of 256 elements: K-quants, IQ4_XS, codebook and ternary types. Include
// after row_dot_avx512.hpp.

namespace sluice::kernels::simd {
namespace {

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

}  // namespace
}  // namespace sluice::kernels::simd
