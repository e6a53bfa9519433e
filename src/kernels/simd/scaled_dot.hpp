#pragma once

// scaled_dot for sets with a 4-byte dot product, whose scale is a 32-bit integer. Include after the vector
// vocabulary.

namespace sluice::kernels::simd {
namespace {

/// acc[p][t] += scale[p] * the dot products.
template <class Format, int Groups, int P, int T>
SLUICE_INLINE void scaled_dot(const std::uint8_t* w, std::size_t panel_bytes, const Ints (&scale)[P],
                              const std::int8_t* const (&q)[T], Ints (&acc)[P][T]) noexcept {
  Ints part[P][T];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) part[p][t] = zero();
  }
  dot<Format, Groups>(w, panel_bytes, q, part);
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[p][t] = add32(acc[p][t], mullo32(part[p][t], scale[p]));
  }
}

}  // namespace
}  // namespace sluice::kernels::simd
