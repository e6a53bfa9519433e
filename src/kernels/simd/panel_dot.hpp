#pragma once

// Panels times activation rows. Include after pack.hpp.
//
// A lane is one weight row, so
//   y = chain over blocks b of fma(float(I_b), d_w * d_x, y), I_b an exact 32-bit integer,
// is the whole arithmetic of an element: it depends neither on the tile an element falls in nor on the
// instruction set. Formats with a minimum continue the chain with fma(-float(M_b), d_min * d_x, y), or +m *
// (sum * d_x).

namespace sluice::kernels::simd {
namespace {

constexpr int k_tile_rows = k_panels * k_lanes;  ///< Weight rows of a tile: the distance of two rows of sums.

/// One activation row times the rows of a tile, for sets on which that needs no panel (k_row_dot).
template <class Format>
struct RowDot;

/// Where a step's parts of some activation rows lie; the rows are row_bytes apart.
struct XView {
  const std::uint8_t* q;
  const std::uint8_t* d;
  const std::uint8_t* sum;
  std::size_t row_bytes;
  std::size_t ahead = 0;  ///< How far behind a weight lies the one that RowDot asks for meanwhile.
  /// Address of what RowDot also asks for, in the order of memory: this step's share of the next tile; or 0.
  std::uintptr_t next_tile = 0;
};

SLUICE_INLINE Floats broadcast_float(const std::uint8_t* p) noexcept {
  return as_float(broadcast32(p));
}

/// Scales of 32 elements: one, or one for each half.
template <class Format>
constexpr int scales_of_32() noexcept {
  if constexpr (requires { Format::k_scales; }) {
    return Format::k_scales;
  } else {
    return 1;
  }
}

/// Where the integers of 32 elements begin, so that the offset of stored values is taken away: `sum` is the
/// sum of the activations at q, in every lane.
template <class Format>
SLUICE_INLINE void start_sums(const std::uint8_t* q, Ints sum, Ints* to) noexcept {
  if constexpr (Format::k_offset == 0) {
    for (int i = 0; i < scales_of_32<Format>(); ++i) to[i] = zero();
  } else if constexpr (scales_of_32<Format>() == 1) {
    to[0] = negative_multiple<Format::k_offset>(sum);
  } else {
    Ints first = zero();
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) first = dot4(first, set8(1), broadcast32(q + 4 * g));
    to[0] = negative_multiple<Format::k_offset>(first);
    to[1] = negative_multiple<Format::k_offset>(sub32(sum, first));
  }
}

/// Adds the panels' pairs of minimums or offsets times the sums of 16 activations each.
template <int P, int T>
SLUICE_INLINE void add_pairs(const KPanel* panel, const XView& x, Ints (&to)[P][T]) noexcept {
  const std::uint8_t* sum = x.sum;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    Ints pair[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) pair[p] = load(panel[p].pair + i * k_vec_bytes);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Ints s = broadcast32(sum + t * x.row_bytes + 4 * i);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) to[p][t] = dot16(to[p][t], pair[p], s);
    }
  }
}

/// Multiplies P panels with T activation rows and adds to sums[t * k_tile_rows + p * k_lanes ...].
template <class Format, int P, int T>
SLUICE_NOINLINE void dot_k(const KPanel* panel, const XView& x, float* sums) noexcept {
  constexpr std::size_t panel_bytes = sizeof(KPanel);
  const std::int8_t* q[T];
  const std::size_t row_bytes = x.row_bytes;
  Ints total[P][T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    q[t] = reinterpret_cast<const std::int8_t*>(x.q + t * row_bytes);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) total[p][t] = zero();
  }
  if constexpr (Format::k_sums == SumUse::offset) add_pairs<P, T>(panel, x, total);
  constexpr int groups = Format::k_sub_groups;
  const std::uint8_t* w = panel->w;
  const std::uint8_t* scales = panel->scale;
  for (int s = 0; s < 64 / groups; ++s) {
    Ints scale[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) scale[p] = load(scales + p * panel_bytes);
    scaled_dot<Format, groups>(w, panel_bytes, scale, q, total);
    w += groups * k_vec_bytes;
    scales += k_vec_bytes;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) q[t] += 4 * groups;
  }
  Ints low[P][T];
  if constexpr (Format::k_sums == SumUse::min) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) low[p][t] = zero();
    }
    add_pairs<P, T>(panel, x, low);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const Floats d_x = broadcast_float(x.d + t * row_bytes);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      float* to = sums + t * k_tile_rows + p * k_lanes;
      Floats y = fma(to_float(total[p][t]), mulf(loadf(panel[p].d), d_x), loadf(to));
      if constexpr (Format::k_sums == SumUse::min) {
        y = fnma(to_float(low[p][t]), mulf(loadf(panel[p].d_min), d_x), y);
      }
      storef(to, y);
    }
  }
}

/// The same for up to eight blocks of 32 elements.
template <class Format, int P, int T>
SLUICE_NOINLINE void dot_q32(const Q32Panel* panel, const XView& x, std::size_t n_blocks,
                             float* sums) noexcept {
  constexpr std::size_t panel_bytes = sizeof(Q32Panel);
  const std::int8_t* q[T];
  const std::size_t row_bytes = x.row_bytes;
  Floats y[P][T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    q[t] = reinterpret_cast<const std::int8_t*>(x.q + t * row_bytes);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) y[p][t] = loadf(sums + t * k_tile_rows + p * k_lanes);
  }
  const std::uint8_t* w = panel->w;
  const float* scales = panel->d;
  const std::uint8_t* d = x.d;
  const std::uint8_t* sum = x.sum;
  for (std::size_t b = 0; b < n_blocks; ++b) {
    Ints total[P][T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      Ints start = zero();
      if constexpr (Format::k_offset != 0)
        start = negative_multiple<Format::k_offset>(broadcast32(sum + t * row_bytes));
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) total[p][t] = start;
    }
    dot<Format, 8>(w, panel_bytes, q, total);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Floats d_x = broadcast_float(d + t * row_bytes);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
        const float* d_w = scales + p * panel_bytes / sizeof(float);
        y[p][t] = fma(to_float(total[p][t]), mulf(loadf(d_w), d_x), y[p][t]);
        if constexpr (Format::k_has_min) {
          const Floats scaled_sum = mulf(to_float(broadcast32(sum + t * row_bytes)), d_x);
          y[p][t] = fma(scaled_sum, loadf(d_w + 8 * k_lanes), y[p][t]);
        }
      }
      q[t] += 32;
    }
    w += 8 * k_vec_bytes;
    scales += k_lanes;
    d += 4;
    sum += 4;
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) storef(sums + t * k_tile_rows + p * k_lanes, y[p][t]);
  }
}

/// The same for formats with two scales for 32 elements.
template <class Format, int P, int T>
SLUICE_NOINLINE void dot_q16(const Q32Panel* panel, const XView& x, std::size_t n_blocks,
                             float* sums) noexcept {
  constexpr std::size_t panel_bytes = sizeof(Q32Panel);
  const std::int8_t* q[T];
  Floats y[P][T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    q[t] = reinterpret_cast<const std::int8_t*>(x.q + t * x.row_bytes);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) y[p][t] = loadf(sums + t * k_tile_rows + p * k_lanes);
  }
  for (std::size_t b = 0; b < n_blocks; ++b) {
    Ints start[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      start_sums<Format>(reinterpret_cast<const std::uint8_t*>(q[t]),
                         broadcast32(x.sum + t * x.row_bytes + 4 * b), start[t]);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Ints total[P][T];
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) total[p][t] = start[t][half];
      }
      dot<Format, 4>(panel->w + (8 * b + 4 * half) * k_vec_bytes, panel_bytes, q, total);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const Floats d_x = broadcast_float(x.d + t * x.row_bytes + 4 * b);
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          const float* d_w = (half == 0 ? panel[p].d : panel[p].m) + b * k_lanes;
          y[p][t] = fma(to_float(total[p][t]), mulf(loadf(d_w), d_x), y[p][t]);
        }
        q[t] += 16;
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) storef(sums + t * k_tile_rows + p * k_lanes, y[p][t]);
  }
}

}  // namespace
}  // namespace sluice::kernels::simd
