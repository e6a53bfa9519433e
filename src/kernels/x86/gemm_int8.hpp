#pragma once

// The driver of the 8-bit kernels. Include after the vector vocabulary and the packers.
//
// k_panels * k_lanes weight rows are decoded once, 256 elements at a time, into panels on the stack; every activation
// row is then multiplied with the panels. A lane is one weight row, so
//   y = chain over blocks b of fma(float(I_b), d_w * d_x, y), I_b an exact 32-bit integer,
// is the whole arithmetic of an element: it depends neither on the tile an element falls in nor on the instruction
// set. Formats with a minimum continue the chain with fma(-float(M_b), d_min * d_x, y), or +m * (sum * d_x).

#include "kernels/quant.hpp"

namespace sluice::kernels::x86 {
namespace {

constexpr std::size_t k_step_elements = 256;         ///< Elements of a panel.
constexpr std::size_t k_tile_rows = k_panels * k_lanes;
constexpr std::size_t k_max_x = 128;                 ///< Activation rows whose sums are kept on the stack.
constexpr std::size_t k_x_cache_bytes = 512 * 1024;  ///< Activations that stay in the L2 cache during a sweep.

struct alignas(64) Q32Panel {
  std::uint8_t w[64 * k_vec_bytes];
  float d[8 * k_lanes];
  float m[8 * k_lanes];
};

/// Where a step's parts of some activation rows lie; the rows are row_bytes apart.
struct XView {
  const std::uint8_t* q;
  const std::uint8_t* d;
  const std::uint8_t* sum;
  std::size_t row_bytes;
};

SLUICE_INLINE Floats broadcast_float(const std::uint8_t* p) noexcept { return as_float(broadcast32(p)); }

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
  const auto add_pairs = [&](Ints(&to)[P][T]) noexcept {
    const std::uint8_t* sum = x.sum;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      Ints pair[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) pair[p] = load(panel[p].pair + i * k_vec_bytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const Ints s = broadcast32(sum + t * row_bytes + 4 * i);
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) to[p][t] = dot16(to[p][t], pair[p], s);
      }
    }
  };
  if constexpr (Format::k_sums == SumUse::offset) add_pairs(total);
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
    add_pairs(low);
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
SLUICE_NOINLINE void dot_q32(const Q32Panel* panel, const XView& x, std::size_t n_blocks, float* sums) noexcept {
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
      if constexpr (Format::k_offset != 0) start = negative_multiple<Format::k_offset>(broadcast32(sum + t * row_bytes));
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

/// K-quant step: one block of 256 elements.
template <class Format>
struct KStep {
  using Panel = KPanel;
  static constexpr ActivationFormat k_activation = ActivationFormat::q8_256;
  static constexpr std::size_t k_bytes = Format::k_block_bytes;  ///< Weight bytes of a full step.
  static constexpr std::size_t k_block_bytes = Format::k_block_bytes, k_block_elements = 256;
  static constexpr std::size_t k_d_step = 4, k_sum_step = 32;    ///< Bytes of d and sums per step.
  static SLUICE_NOINLINE void pack(const std::uint8_t* p, std::size_t stride, std::size_t, Panel& panel) noexcept {
    Format::pack(p, stride, panel);
  }
  template <int P, int T>
  static SLUICE_INLINE void dot(const Panel* panel, const XView& x, std::size_t, float* sums) noexcept {
    dot_k<Format, P, T>(panel, x, sums);
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
  static SLUICE_NOINLINE void pack(const std::uint8_t* p, std::size_t stride, std::size_t n_blocks,
                                   Panel& panel) noexcept {
    for (std::size_t b = 0; b < n_blocks; ++b) {
      Floats d, m = zerof();
      Format::pack(p + b * Format::k_block_bytes, stride, panel.w + 8 * b * k_vec_bytes, d, m);
      storef(panel.d + b * k_lanes, d);
      if constexpr (Format::k_has_min) storef(panel.m + b * k_lanes, m);
    }
  }
  template <int P, int T>
  static SLUICE_INLINE void dot(const Panel* panel, const XView& x, std::size_t n_blocks, float* sums) noexcept {
    dot_q32<Format, P, T>(panel, x, n_blocks, sums);
  }
};

/// Multiplies P panels with n_x rows, in tiles.
template <class Step, int P>
SLUICE_INLINE void dot_all(const typename Step::Panel* panel, XView x, std::size_t n_x, std::size_t n_blocks,
                           float* sums) noexcept {
  const auto tile = [&]<int T>() noexcept {
    Step::template dot<P, T>(panel, x, n_blocks, sums);
    x.q += T * x.row_bytes;
    x.d += T * x.row_bytes;
    x.sum += T * x.row_bytes;
    sums += T * k_tile_rows;
    n_x -= T;
  };
  while (n_x >= k_x_tile) tile.template operator()<k_x_tile>();
  if (n_x >= 2) tile.template operator()<2>();
  if (n_x == 1) tile.template operator()<1>();
}

/// Asks for the bytes [from, from + n_bytes) to be brought into the cache.
SLUICE_INLINE void prefetch_bytes(const std::uint8_t* from, std::size_t n_bytes) noexcept {
  for (std::size_t i = 0; i < n_bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T1);
}

/// A matrix of weights and some activation rows.
struct Task {
  const std::uint8_t* w;
  std::size_t w_row_bytes;
  const std::uint8_t* x;
  std::size_t x_row_bytes, n_x, n_cols;
  ActivationLayout layout;
  float* y;
  std::size_t y_stride;
};

/// P panels, of which the last may have fewer than k_lanes rows, times n_x <= k_max_x activation rows. The next
/// `n_next` rows are asked for meanwhile.
template <class Step, int P>
SLUICE_NOINLINE void gemm_rows(const Task& task, std::size_t n_rows, std::size_t n_next) noexcept {
  typename Step::Panel panels[P];
  alignas(64) float sums[k_max_x * k_tile_rows];
  alignas(64) std::uint8_t copy[k_lanes * Step::k_bytes];
  for (std::size_t j = 0; j < task.n_x; ++j) {
    for (int p = 0; p < P; ++p) storef(sums + j * k_tile_rows + p * k_lanes, zerof());
  }
  const std::size_t n_last = n_rows - (P - 1) * k_lanes;
  if (n_last < k_lanes) __builtin_memset(copy, 0, sizeof copy);

  XView view{task.x, task.x + task.layout.scale_offset, task.x + task.layout.sum_offset, task.x_row_bytes};
  const std::uint8_t* w = task.w;
  const std::uint8_t* next = w + n_rows * task.w_row_bytes;
  for (std::size_t column = 0; column < task.n_cols; column += k_step_elements) {
    const std::size_t rest = task.n_cols - column;
    const std::size_t n_blocks = (rest < k_step_elements ? rest : k_step_elements) / Step::k_block_elements;
    const std::size_t n_bytes = n_blocks * Step::k_block_bytes;
    prefetch_bytes(next, n_next * n_bytes);
    next += n_next * n_bytes;
    for (int p = 0; p < P; ++p) {
      const std::uint8_t* rows = w + p * k_lanes * task.w_row_bytes;
      if (p < P - 1 || n_last == k_lanes) {
        Step::pack(rows, task.w_row_bytes, n_blocks, panels[p]);
      } else {  // too few rows for a panel: gather them, the missing ones read as zero
        for (std::size_t r = 0; r < n_last; ++r) {
          __builtin_memcpy(copy + r * Step::k_bytes, rows + r * task.w_row_bytes, n_bytes);
        }
        Step::pack(copy, Step::k_bytes, n_blocks, panels[p]);
      }
    }
    dot_all<Step, P>(panels, view, task.n_x, n_blocks, sums);
    w += n_bytes;
    view.q += k_step_elements;
    view.d += Step::k_d_step;
    view.sum += Step::k_sum_step;
  }
  for (std::size_t j = 0; j < task.n_x; ++j) {
    __builtin_memcpy(task.y + j * task.y_stride, sums + j * k_tile_rows, n_rows * sizeof(float));
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
    for (std::size_t i = 0; i < n_rows; i += k_tile_rows) {
      const std::size_t rows = n_rows - i < k_tile_rows ? n_rows - i : k_tile_rows;
      const std::size_t after = n_rows - i - rows;
      const Task task{static_cast<const std::uint8_t*>(w) + i * w_row_bytes,
                      w_row_bytes,
                      static_cast<const std::uint8_t*>(x) + j * x_row_bytes,
                      x_row_bytes,
                      n,
                      n_cols,
                      layout,
                      y + j * y_stride + i,
                      y_stride};
      const std::size_t n_next = after < k_tile_rows ? after : k_tile_rows;
      if (k_panels == 2 && rows > k_lanes) {
        gemm_rows<Step, k_panels>(task, rows, n_next);
      } else {
        gemm_rows<Step, 1>(task, rows, n_next);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::x86
