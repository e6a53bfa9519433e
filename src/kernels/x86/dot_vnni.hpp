#pragma once

// Products of panels for the sets with dot4(). Included behind their vector vocabulary.

namespace sluice::kernels::simd {
namespace {

/// acc[p][t] += the dot products of Groups consecutive 4-element groups: those of panel p, whose bytes start
/// at w + p * panel_bytes, with those of activation row t.
template <class Format, int Groups, int P, int T>
SLUICE_INLINE void dot(const std::uint8_t* w, std::size_t panel_bytes, const std::int8_t* const (&q)[T],
                       Ints (&acc)[P][T]) noexcept {
#pragma GCC unroll 8
  for (int g = 0; g < Groups; ++g) {
    Ints wg[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) wg[p] = load(w + p * panel_bytes + g * k_vec_bytes);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Ints xg = broadcast32(q[t] + 4 * g);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) acc[p][t] = dot4(acc[p][t], wg[p], xg);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::simd
