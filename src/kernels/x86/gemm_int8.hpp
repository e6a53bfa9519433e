#pragma once

// The driver of the 8-bit kernels. Include after the vector vocabulary and the packers.
//
// k_lanes weight rows are decoded once, 256 elements at a time, into a panel on the stack; every activation row is
// then multiplied with the panel. A lane is one weight row, so
//   y = chain over blocks b of fma(float(I_b), d_w * d_x, y), I_b an exact 32-bit integer,
// is the whole arithmetic of an element: it depends neither on the tile an element falls in nor on the instruction
// set. Formats with a minimum continue the chain with fma(-float(M_b), d_min * d_x, y), or +m * (sum * d_x).

#include "kernels/quant.hpp"

namespace sluice::kernels::x86 {
namespace {

constexpr std::size_t k_step_elements = 256;        ///< Elements of a panel.
constexpr std::size_t k_max_x = 128;                ///< Activation rows whose sums are kept on the stack.
constexpr std::size_t k_x_cache_bytes = 512 * 1024; ///< Activations that stay in the L2 cache during a sweep.

struct alignas(64) Q32Panel {
  std::uint8_t w[64 * k_vec_bytes];
  float d[8 * k_lanes];
  float m[8 * k_lanes];
};

/// Where a step's part of each activation row lies.
struct XView {
  const std::uint8_t* base;  ///< First row of the tile.
  std::size_t row_bytes;
  std::size_t q_offset, d_offset, sum_offset;
};

SLUICE_INLINE float read_float(const std::uint8_t* p) noexcept {
  float v;
  __builtin_memcpy(&v, p, 4);
  return v;
}

/// Multiplies the panel with T activation rows and adds to sums[t * k_lanes ...].
template <class Format, int T>
SLUICE_INLINE void dot_k(const KPanel& panel, const XView& x, float* sums) noexcept {
  const std::int8_t* q[T];
  Ints total[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    q[t] = reinterpret_cast<const std::int8_t*>(x.base + t * x.row_bytes + x.q_offset);
    total[t] = zero();
  }
  const auto add_pairs = [&](Ints(&to)[T]) noexcept {
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p) {
      const Ints pair = load(panel.pair + p * k_vec_bytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        to[t] = dot16(to[t], pair, broadcast32(x.base + t * x.row_bytes + x.sum_offset + 4 * p));
      }
    }
  };
  if constexpr (Format::k_sums == SumUse::offset) add_pairs(total);
  constexpr int groups = Format::k_sub_groups;
  const std::uint8_t* w = panel.w;
  const std::uint8_t* scale = panel.scale;
  for (int s = 0; s < 64 / groups; ++s) {
    scaled_dot<Format, groups>(w, load(scale), q, total);
    w += groups * k_vec_bytes;
    scale += k_vec_bytes;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) q[t] += 4 * groups;
  }
  const Floats d = loadf(panel.d);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const Floats scaled = mulf(d, setf(read_float(x.base + t * x.row_bytes + x.d_offset)));
    storef(sums + t * k_lanes, fma(to_float(total[t]), scaled, loadf(sums + t * k_lanes)));
  }
  if constexpr (Format::k_sums == SumUse::min) {
    Ints low[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) low[t] = zero();
    add_pairs(low);
    const Floats d_min = loadf(panel.d_min);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Floats scaled = mulf(d_min, setf(read_float(x.base + t * x.row_bytes + x.d_offset)));
      storef(sums + t * k_lanes, fnma(to_float(low[t]), scaled, loadf(sums + t * k_lanes)));
    }
  }
}

template <class Format, int T>
SLUICE_INLINE void dot_q32(const Q32Panel& panel, const XView& x, std::size_t n_blocks, float* sums) noexcept {
  const std::int8_t* q[T];
  Floats y[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    q[t] = reinterpret_cast<const std::int8_t*>(x.base + t * x.row_bytes + x.q_offset);
    y[t] = loadf(sums + t * k_lanes);
  }
  const std::uint8_t* w = panel.w;
  for (std::size_t b = 0; b < n_blocks; ++b) {
    Ints total[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      total[t] = zero();
      if constexpr (Format::k_offset != 0) {
        const Ints sum = broadcast32(x.base + t * x.row_bytes + x.sum_offset + 4 * b);
        total[t] = mullo32(sum, set32(-Format::k_offset));
      }
    }
    dot<Format, 8>(w, q, total);
    const Floats d = loadf(panel.d + b * k_lanes);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Floats d_x = setf(read_float(x.base + t * x.row_bytes + x.d_offset + 4 * b));
      y[t] = fma(to_float(total[t]), mulf(d, d_x), y[t]);
      if constexpr (Format::k_has_min) {
        const Floats sum = to_float(broadcast32(x.base + t * x.row_bytes + x.sum_offset + 4 * b));
        y[t] = fma(mulf(sum, d_x), loadf(panel.m + b * k_lanes), y[t]);
      }
      q[t] += 32;
    }
    w += 8 * k_vec_bytes;
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) storef(sums + t * k_lanes, y[t]);
}

/// K-quant step: one block of 256 elements.
template <class Format>
struct KStep {
  using Panel = KPanel;
  static constexpr ActivationFormat k_activation = ActivationFormat::q8_256;
  static constexpr std::size_t k_bytes = Format::k_block_bytes;         ///< Weight bytes of a full step.
  static constexpr std::size_t k_block_bytes = Format::k_block_bytes, k_block_elements = 256;
  static constexpr std::size_t k_d_step = 4, k_sum_step = 32;           ///< Bytes of d and sums per step.
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, std::size_t, Panel& panel) noexcept {
    Format::pack(p, stride, panel);
  }
  template <int T>
  static SLUICE_INLINE void dot(const Panel& panel, const XView& x, std::size_t, float* sums) noexcept {
    dot_k<Format, T>(panel, x, sums);
  }
};

/// Step of up to eight blocks of 32 elements.
template <class Format>
struct Q32Step {
  using Panel = Q32Panel;
  static constexpr ActivationFormat k_activation = ActivationFormat::q8_32;
  static constexpr std::size_t k_bytes = 8 * Format::k_block_bytes;
  static constexpr std::size_t k_block_bytes = Format::k_block_bytes, k_block_elements = 32;
  static constexpr std::size_t k_d_step = 32, k_sum_step = 32;
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, std::size_t n_blocks,
                                 Panel& panel) noexcept {
    for (std::size_t b = 0; b < n_blocks; ++b) {
      Floats d, m = zerof();
      Format::pack(p + b * Format::k_block_bytes, stride, panel.w + 8 * b * k_vec_bytes, d, m);
      storef(panel.d + b * k_lanes, d);
      if constexpr (Format::k_has_min) storef(panel.m + b * k_lanes, m);
    }
  }
  template <int T>
  static SLUICE_INLINE void dot(const Panel& panel, const XView& x, std::size_t n_blocks, float* sums) noexcept {
    dot_q32<Format, T>(panel, x, n_blocks, sums);
  }
};

/// Multiplies a panel with n_x rows, in tiles.
template <class Step>
SLUICE_INLINE void dot_all(const typename Step::Panel& panel, XView x, std::size_t n_x, std::size_t n_blocks,
                           float* sums) noexcept {
  const auto advance = [&](std::size_t n) noexcept {
    x.base += n * x.row_bytes;
    sums += n * k_lanes;
    n_x -= n;
  };
  while (n_x >= k_x_tile) {
    Step::template dot<k_x_tile>(panel, x, n_blocks, sums);
    advance(k_x_tile);
  }
  if constexpr (k_x_tile > 4) {
    if (n_x >= 4) {
      Step::template dot<4>(panel, x, n_blocks, sums);
      advance(4);
    }
  }
  if (n_x >= 2) {
    Step::template dot<2>(panel, x, n_blocks, sums);
    advance(2);
  }
  if (n_x == 1) Step::template dot<1>(panel, x, n_blocks, sums);
}

/// Asks for the bytes [from, from + n_bytes) to be brought into the cache.
SLUICE_INLINE void prefetch_bytes(const std::uint8_t* from, std::size_t n_bytes) noexcept {
  for (std::size_t i = 0; i < n_bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T0);
}

/// The rows [0, n_rows), n_rows <= k_lanes, times n_x <= k_max_x activation rows.
template <class Step>
SLUICE_INLINE void gemm_rows(const std::uint8_t* w, std::size_t w_row_bytes, std::size_t n_rows, const std::uint8_t* x,
                             std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols,
                             const ActivationLayout& layout, bool more_rows, float* y, std::size_t y_stride) noexcept {
  typename Step::Panel panel;
  alignas(64) float sums[k_max_x * k_lanes];
  alignas(64) std::uint8_t copy[k_lanes * Step::k_bytes];
  for (std::size_t j = 0; j < n_x; ++j) storef(sums + j * k_lanes, zerof());
  if (n_rows < k_lanes) __builtin_memset(copy, 0, sizeof copy);

  XView view{x, x_row_bytes, 0, layout.scale_offset, layout.sum_offset};
  const std::uint8_t* next = w + k_lanes * w_row_bytes;
  for (std::size_t column = 0; column < n_cols; column += k_step_elements) {
    const std::size_t n_elements = n_cols - column < k_step_elements ? n_cols - column : k_step_elements;
    const std::size_t n_blocks = n_elements / Step::k_block_elements;
    const std::size_t n_bytes = n_blocks * Step::k_block_bytes;
    if (n_rows < k_lanes) {  // too few rows for a panel: gather them, the missing ones read as zero
      for (std::size_t r = 0; r < n_rows; ++r) {
        __builtin_memcpy(copy + r * Step::k_bytes, w + r * w_row_bytes, n_bytes);
      }
      Step::pack(copy, Step::k_bytes, n_blocks, panel);
    } else {
      if (more_rows) {
        prefetch_bytes(next, k_lanes * n_bytes);
        next += k_lanes * n_bytes;
      }
      Step::pack(w, w_row_bytes, n_blocks, panel);
    }
    dot_all<Step>(panel, view, n_x, n_blocks, sums);
    w += n_bytes;
    view.q_offset += k_step_elements;
    view.d_offset += Step::k_d_step;
    view.sum_offset += Step::k_sum_step;
  }
  for (std::size_t j = 0; j < n_x; ++j) {
    if (n_rows == k_lanes) {
      storef(y + j * y_stride, loadf(sums + j * k_lanes));
    } else {
      __builtin_memcpy(y + j * y_stride, sums + j * k_lanes, n_rows * sizeof(float));
    }
  }
}

template <class Step>
void gemm(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x, std::size_t x_row_bytes,
          std::size_t n_x, std::size_t n_cols, float* y, std::size_t y_stride) noexcept {
  const ActivationLayout layout = activation_layout(Step::k_activation, n_cols);
  std::size_t x_chunk = k_x_cache_bytes / (layout.row_bytes + 1) / k_x_tile * k_x_tile;
  if (x_chunk > k_max_x) x_chunk = k_max_x;
  if (x_chunk < 16) x_chunk = 16;
  for (std::size_t j = 0; j < n_x; j += x_chunk) {
    const std::size_t n = n_x - j < x_chunk ? n_x - j : x_chunk;
    for (std::size_t i = 0; i < n_rows; i += k_lanes) {
      const std::size_t rows = n_rows - i < k_lanes ? n_rows - i : k_lanes;
      gemm_rows<Step>(static_cast<const std::uint8_t*>(w) + i * w_row_bytes, w_row_bytes, rows,
                      static_cast<const std::uint8_t*>(x) + j * x_row_bytes, x_row_bytes, n, n_cols, layout,
                      i + 2 * k_lanes <= n_rows, y + j * y_stride + i, y_stride);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::x86
