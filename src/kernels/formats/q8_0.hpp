#pragma once

// Q8_0, Q8_1 and Q8_K: bytes. The last two are formats that ggml keeps activations in.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

/// w = d * q
struct BlockQ8_0 {
  static constexpr std::size_t k_elements = 32;
  Half d;
  std::int8_t qs[32];
};

/// w = d * q; s = d * sum(q), which decoding does not need. An activation format of ggml, seen in no weights.
struct BlockQ8_1 {
  static constexpr std::size_t k_elements = 32;
  Half d, s;
  std::int8_t qs[32];
};

/// w = d * q. An activation format of ggml; bsums are sums of 16 quants, which decoding does not need.
struct BlockQ8K {
  static constexpr std::size_t k_elements = 256;
  Le32 d;
  std::int8_t qs[256];
  Le16 bsums[16];
};

inline void unpack(const BlockQ8_0& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  for (std::size_t j = 0; j < BlockQ8_0::k_elements; ++j) out.q[j] = block.qs[j];
}

inline void decode(const BlockQ8_1& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t j = 0; j < BlockQ8_1::k_elements; ++j) out[j] = d * static_cast<float>(block.qs[j]);
}

inline void decode(const BlockQ8K& block, float* out) noexcept {
  const float d = std::bit_cast<float>(std::uint32_t{block.d});
  for (std::size_t l = 0; l < BlockQ8K::k_elements; ++l) out[l] = d * static_cast<float>(block.qs[l]);
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

struct Q8_0 {
  static constexpr int k_block_bytes = 34, k_max = 255, k_offset = k_wide_bias;
  static constexpr bool k_wide = true, k_has_min = false;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = half_to_float(transpose(p, stride).v0);
    const Octet o = transpose32(p + 2, stride);
    const Ints q[8] = {o.low.v0, o.low.v1, o.low.v2, o.low.v3, o.high.v0, o.high.v1, o.high.v2, o.high.v3};
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) sink.put(g, bias_wide(q[g]));
  }
};

#ifdef SLUICE_ROW_DOT_256

template <>
struct RowDot<Q8_0> {
  static SLUICE_NOINLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                  std::size_t n_blocks, float* sums) noexcept {
    alignas(16) std::uint16_t d[k_lanes];
    Floats y = loadf(sums);
    for (std::size_t b = 0; b < n_blocks; ++b) {
      const Ints q = load(x.q + 32 * b);
      const std::uint8_t* row = p + b * Q8_0::k_block_bytes;
      Ints total[k_lanes];
#pragma GCC unroll 8
      for (int r = 0; r < k_lanes; ++r, row += stride) {
        d[r] = load_u16(row);
        total[r] = dot4_of<Q8_0>(zero(), bias_wide(load_any(row + 2)), q);
      }
      Ints dot = Folded(total).both();
      if constexpr (Q8_0::k_offset != 0)
        dot = add32(dot, negative_multiple<Q8_0::k_offset>(broadcast32(x.sum + 4 * b)));
      y = fma(to_float(dot), mulf(halves_to_floats(d), broadcast_float(x.d + 4 * b)), y);
    }
    storef(sums, y);
  }
};

#endif

#ifdef SLUICE_AVX512_ROW_DOT

struct Q8_0RowDot {
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
    Q32Scales<Q8_0> scales;
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

template <>
struct RowDot<Q8_0> : Q8_0RowDot {};

#endif

}  // namespace
}  // namespace sluice::kernels::simd

#endif
