#pragma once

// RowDot of formats with blocks of 32 elements: what their headers share. Include after row_dot_avx512.hpp.

namespace sluice::kernels::simd {
namespace {

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

}  // namespace
}  // namespace sluice::kernels::simd
