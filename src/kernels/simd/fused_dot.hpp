#pragma once

// One activation row (decode): the weights are multiplied while they are unpacked. No panel is written and
// read again. The same integers as with panels, so the same bits. Include after panel_dot.hpp.

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

/// Formats whose blocks have several parts of 32 elements.
template <class Format>
SLUICE_NOINLINE void fused_parts(const std::uint8_t* p, std::size_t stride, const XView& x,
                                 std::size_t n_blocks, float* sums) noexcept {
  constexpr int n_parts = Format::k_block_elements / 32, n_scales = scales_of_32<Format>();
  constexpr int n_sums = n_parts * n_scales;
  if constexpr (k_row_dot_asks) {
    const std::uint8_t* later = p + x.ahead;
    for (int r = 0; r < k_lanes; ++r, later += stride) {
      for (int i = 0; i < 256 / Format::k_block_elements * Format::k_block_bytes; i += 64)
        __builtin_prefetch(later + i);
    }
  }
  Floats y = loadf(sums);
  for (std::size_t b = 0; b < n_blocks; ++b, p += Format::k_block_bytes) {
    const std::size_t part = b * n_parts;
    Ints acc[n_sums];
#pragma GCC unroll 4
    for (int i = 0; i < n_parts; ++i)
      start_sums<Format>(x.q + 32 * (part + i), broadcast32(x.sum + 4 * (part + i)), acc + i * n_scales);
    Floats d[n_sums];
    Format::pack(p, stride, DotSink<8 / n_scales, n_sums>{x.q + 32 * part, acc}, d);
#pragma GCC unroll 4
    for (int i = 0; i < n_sums; ++i) {
      const Floats d_x = broadcast_float(x.d + 4 * (part + i / n_scales));
      y = fma(to_float(acc[i]), mulf(d[i], d_x), y);
    }
  }
  storef(sums, y);
}

template <class Format>
struct FusedRowDot {
  /// Formats of 256 elements.
  static SLUICE_INLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                float* sums) noexcept {
    fused_k<Format>(p, stride, x, sums);
  }
  /// Formats with blocks, or parts of blocks, of 32 elements.
  static SLUICE_INLINE void run(const std::uint8_t* p, std::size_t stride, const XView& x,
                                std::size_t n_blocks, float* sums) noexcept {
    if constexpr (requires { Format::k_block_elements; }) {
      fused_parts<Format>(p, stride, x, n_blocks, sums);
    } else {
      fused_q32<Format>(p, stride, x, n_blocks, sums);
    }
  }
};

}  // namespace
}  // namespace sluice::kernels::simd
