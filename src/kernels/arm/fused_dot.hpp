#pragma once

// One activation row (decode) with NEON: the weights are multiplied while they are unpacked. No panel is
// written and read again. Include after panel_dot.hpp.

namespace sluice::kernels::simd {
namespace {

/// Multiplies each vector with one activation row as it comes, one sum per Groups groups.
template <int Groups, int Sums>
struct DotSink {
  const std::uint8_t* q;
  Ints (&acc)[Sums];
  SLUICE_INLINE void put(int group, Ints v) noexcept {
    acc[group / Groups] = dot4(acc[group / Groups], v, broadcast32(q + 4 * group));
  }
};

/// One panel and one activation row without writing the panel: the same integers, so the same bits.
template <class Format>
SLUICE_NOINLINE void fused_k(const std::uint8_t* p, std::size_t stride, const XView& x,
                             float* sums) noexcept {
  constexpr int n_sums = 64 / Format::k_sub_groups;
  KPanel panel;
  Ints acc[n_sums];
#pragma GCC unroll 16
  for (int s = 0; s < n_sums; ++s) acc[s] = zero();
  Format::pack(p, stride, panel, DotSink<Format::k_sub_groups, n_sums>{x.q, acc});
  Ints total = zero(), low = zero();
#pragma GCC unroll 16
  for (int s = 0; s < n_sums; ++s) total = add32(total, mullo32(acc[s], load(panel.scale + s * k_vec_bytes)));
  if constexpr (Format::k_sums != SumUse::none) {
    Ints& to = Format::k_sums == SumUse::offset ? total : low;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      to = dot16(to, load(panel.pair + i * k_vec_bytes), broadcast32(x.sum + 4 * i));
  }
  const Floats d_x = broadcast_float(x.d);
  Floats y = fma(to_float(total), mulf(loadf(panel.d), d_x), loadf(sums));
  if constexpr (Format::k_sums == SumUse::min) y = fnma(to_float(low), mulf(loadf(panel.d_min), d_x), y);
  storef(sums, y);
}

template <class Format>
SLUICE_NOINLINE void fused_q32(const std::uint8_t* p, std::size_t stride, const XView& x,
                               std::size_t n_blocks, float* sums) noexcept {
  Floats y = loadf(sums);
  for (std::size_t b = 0; b < n_blocks; ++b) {
    const Ints sum = broadcast32(x.sum + 4 * b);
    Ints acc[2] = {zero(), zero()};  // two, for the latency of the chain
    if constexpr (Format::k_offset != 0) acc[0] = negative_multiple<Format::k_offset>(sum);
    Floats d, m;
    Format::pack(p + b * Format::k_block_bytes, stride, DotSink<4, 2>{x.q + 32 * b, acc}, d, m);
    const Floats d_x = broadcast_float(x.d + 4 * b);
    y = fma(to_float(add32(acc[0], acc[1])), mulf(d, d_x), y);
    if constexpr (Format::k_has_min) y = fma(mulf(to_float(sum), d_x), m, y);
  }
  storef(sums, y);
}

template <class Format>
struct RowDot {
  /// Formats of 256 elements.
  static SLUICE_INLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                float* sums) noexcept {
    fused_k<Format>(p, stride, x, sums);
  }
  /// Formats of 32 elements.
  static SLUICE_INLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                std::size_t n_blocks, float* sums) noexcept {
    fused_q32<Format>(p, stride, x, n_blocks, sums);
  }
};

}  // namespace
}  // namespace sluice::kernels::simd
