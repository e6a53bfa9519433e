#pragma once

// RowDot of the codebook and ternary formats. Include after row_dot_avx512.hpp.

namespace sluice::kernels::simd {
namespace {

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

}  // namespace
}  // namespace sluice::kernels::simd
