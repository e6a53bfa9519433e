#pragma once

// The driver of the 8-bit kernels. Include after the formats.
// One activation row goes to RowDot on sets and for formats that have it (k_row_dot).
//
// k_panels * k_lanes weight rows are decoded once, 256 elements at a time, into panels on the stack; every
// activation row is then multiplied with the panels.

#include "kernels/quant.hpp"

namespace sluice::kernels::simd {
namespace {

constexpr std::size_t k_step_elements = 256;  ///< Elements of a panel.
constexpr std::size_t k_max_x = 128;          ///< Activation rows whose sums are kept on the stack.
/// Activations that stay in the L2 cache during a sweep.
constexpr std::size_t k_x_cache_bytes = 512 * 1024;

/// What a format says about rows that are short (AskAhead); 0 when it says nothing.
template <class Format>
constexpr std::size_t next_tile_ahead() noexcept {
  if constexpr (requires { Format::k_next_tile_ahead; }) {
    return Format::k_next_tile_ahead;
  } else {
    return 0;
  }
}

/// K-quant step: one block of 256 elements.
template <class Format>
struct KStep {
  using Panel = KPanel;
  using ByRows = RowDot<Format>;
  static constexpr ActivationFormat k_activation = ActivationFormat::q8_256;
  static constexpr std::size_t k_bytes = Format::k_block_bytes;  ///< Weight bytes of a full step.
  static constexpr std::size_t k_block_bytes = Format::k_block_bytes, k_block_elements = 256;
  static constexpr std::size_t k_d_step = 4, k_sum_step = 32;  ///< Bytes of d and sums per step.
  static constexpr std::size_t k_next_tile_ahead = next_tile_ahead<Format>();
  static SLUICE_NOINLINE void pack(const std::uint8_t* p, std::size_t stride, std::size_t,
                                   Panel& panel) noexcept {
    Format::pack(p, stride, panel, PanelSink{panel.w});
  }
  static SLUICE_INLINE void by_rows(const std::uint8_t* p, std::size_t stride, const XView& x, std::size_t,
                                    float* sums) noexcept {
    RowDot<Format>::run(p, stride, x, sums);
  }
  template <int P, int T>
  static SLUICE_INLINE void dot(const Panel* panel, const XView& x, std::size_t, float* sums) noexcept {
    dot_k<Format, P, T>(panel, x, sums);
  }
};

/// Step of up to 256 elements in blocks of 32, or in larger ones of several such parts.
template <class Format>
struct Q32Step {
  static constexpr int block_elements() noexcept {
    if constexpr (requires { Format::k_block_elements; }) {
      return Format::k_block_elements;
    } else {
      return 32;
    }
  }
  using Panel = Q32Panel;
  using ByRows = RowDot<Format>;
  static constexpr ActivationFormat k_activation = ActivationFormat::q8_32;
  static constexpr std::size_t k_block_bytes = Format::k_block_bytes, k_block_elements = block_elements();
  static constexpr std::size_t k_bytes = 256 / k_block_elements * k_block_bytes;
  static constexpr std::size_t k_parts = k_block_elements / 32;
  static constexpr std::size_t k_d_step = 32, k_sum_step = 32;
  static constexpr std::size_t k_next_tile_ahead = next_tile_ahead<Format>();
  static SLUICE_NOINLINE void pack(const std::uint8_t* p, std::size_t stride, std::size_t n_blocks,
                                   Panel& panel) noexcept {
    for (std::size_t b = 0; b < n_blocks; ++b) {
      const PanelSink sink{panel.w + 8 * k_parts * b * k_vec_bytes};
      if constexpr (k_parts == 1) {
        Floats d, m = zerof();
        Format::pack(p + b * Format::k_block_bytes, stride, sink, d, m);
        storef(panel.d + b * k_lanes, d);
        if constexpr (Format::k_has_min) storef(panel.m + b * k_lanes, m);
      } else {
        constexpr std::size_t n_scales = scales_of_32<Format>();
        Floats d[k_parts * n_scales];
        Format::pack(p + b * Format::k_block_bytes, stride, sink, d);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < k_parts; ++i) {
          storef(panel.d + (b * k_parts + i) * k_lanes, d[i * n_scales]);
          if constexpr (n_scales == 2) storef(panel.m + (b * k_parts + i) * k_lanes, d[i * n_scales + 1]);
        }
      }
    }
  }
  static SLUICE_INLINE void by_rows(const std::uint8_t* p, std::size_t stride, const XView& x,
                                    std::size_t n_blocks, float* sums) noexcept {
    RowDot<Format>::run(p, stride, x, n_blocks, sums);
  }
  template <int P, int T>
  static SLUICE_INLINE void dot(const Panel* panel, const XView& x, std::size_t n_blocks,
                                float* sums) noexcept {
    if constexpr (scales_of_32<Format>() == 2) {
      dot_q16<Format, P, T>(panel, x, n_blocks * k_parts, sums);
    } else {
      dot_q32<Format, P, T>(panel, x, n_blocks * k_parts, sums);
    }
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

/// Steps between asking for a part of a row and using it. The rows of a tile are many streams, more than
/// hardware prefetchers follow.
constexpr std::size_t k_ahead = 4;
/// The same where RowDot asks between its rows instead of for a whole step at once.
constexpr std::size_t k_row_dot_ahead = 3;
/// Rows up to this length end before the hardware has followed them far. Some formats, by measurement, then
/// ask for the next tile in the order of memory, and in the row k_next_tile_ahead steps ahead (0: they do
/// not).
constexpr std::size_t k_short_row_elements = 4096;

/// Asks for n_bytes of each row to be brought into the cache. An address, as it may lie past the end of the
/// weights.
SLUICE_INLINE void prefetch_rows(std::uintptr_t from, std::size_t row_bytes, std::size_t n_rows,
                                 std::size_t n_bytes) noexcept {
  for (std::size_t r = 0; r < n_rows; ++r, from += row_bytes) {
    for (std::size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(from + i));
  }
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

/// Which weights gemm_rows asks for while it computes, step by step.
template <class Step>
struct AskAhead {
  bool between_rows;  ///< RowDot asks between its rows, not gemm_rows for a whole step at once.
  bool in_next_tile;  ///< RowDot also asks for the next tile in the order of memory.
  std::uintptr_t next_tile;
  std::size_t to_next_tile;  ///< From the end of the used bytes of a row to the first row of the next tile.
  std::size_t n_rows, n_next;

  SLUICE_INLINE AskAhead(const Task& task, std::size_t rows, std::size_t next, bool by_rows) noexcept {
    n_rows = rows;
    n_next = next;
    // The rows of a panel that is not full are copied, so the distance would be that from the copy.
    between_rows = k_row_dot_asks && by_rows && n_rows == k_lanes;
    in_next_tile = between_rows && Step::k_next_tile_ahead != 0 && task.n_cols <= k_short_row_elements;
    next_tile = reinterpret_cast<std::uintptr_t>(task.w) + n_rows * task.w_row_bytes;
    to_next_tile = n_rows * task.w_row_bytes - task.n_cols / Step::k_block_elements * Step::k_block_bytes;
  }
  /// Before the step that begins with `column`, whose weights are the n_bytes at w.
  SLUICE_INLINE void ask(const Task& task, const std::uint8_t* w, std::size_t column, std::size_t n_bytes,
                         XView& view) const noexcept {
    const std::size_t n_steps = !between_rows  ? k_ahead
                                : in_next_tile ? Step::k_next_tile_ahead
                                               : k_row_dot_ahead;
    const bool same_tile = column + n_steps * k_step_elements < task.n_cols;
    // Past the end of the rows: the first steps of the next tile.
    const std::size_t ahead = n_steps * Step::k_bytes + (same_tile ? 0 : to_next_tile);
    if (between_rows) {
      view.ahead = ahead;
      if (in_next_tile) view.next_tile = next_tile + column / k_step_elements * (k_lanes * Step::k_bytes);
    } else {
      prefetch_rows(reinterpret_cast<std::uintptr_t>(w) + ahead, task.w_row_bytes,
                    same_tile ? n_rows : n_next, n_bytes);
    }
  }
};

/// P panels, of which the last may have fewer than k_lanes rows, times n_x <= k_max_x activation rows. The
/// next `n_next` rows are asked for meanwhile.
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
  constexpr bool has_row_dot = k_row_dot && requires {
    sizeof(typename Step::ByRows);
  };
  const bool by_rows = has_row_dot && P == 1 && task.n_x == 1;
  const AskAhead<Step> ahead(task, n_rows, n_next, by_rows);
  for (std::size_t column = 0; column < task.n_cols; column += k_step_elements) {
    const std::size_t rest = task.n_cols - column;
    const std::size_t n_blocks = (rest < k_step_elements ? rest : k_step_elements) / Step::k_block_elements;
    const std::size_t n_bytes = n_blocks * Step::k_block_bytes;
    ahead.ask(task, w, column, n_bytes, view);
    const std::uint8_t* last = w + (P - 1) * k_lanes * task.w_row_bytes;
    std::size_t last_stride = task.w_row_bytes;
    if (n_last < k_lanes) {  // too few rows for a panel: gather them, the missing ones read as zero
      for (std::size_t r = 0; r < n_last; ++r) {
        __builtin_memcpy(copy + r * Step::k_bytes, last + r * task.w_row_bytes, n_bytes);
      }
      last = copy;
      last_stride = Step::k_bytes;
    }
    if constexpr (has_row_dot && P == 1) {
      if (by_rows) Step::by_rows(last, last_stride, view, n_blocks, sums);
    }
    if (!by_rows) {
      for (int p = 0; p < P - 1; ++p) {
        Step::pack(w + p * k_lanes * task.w_row_bytes, task.w_row_bytes, n_blocks, panels[p]);
      }
      Step::pack(last, last_stride, n_blocks, panels[P - 1]);
      dot_all<Step, P>(panels, view, task.n_x, n_blocks, sums);
    }
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
  // One activation row has nothing to share: one panel follows fewer streams of memory and stays in the L1
  // cache.
  const std::size_t tile_rows = n_x == 1 ? k_lanes : k_tile_rows;
  for (std::size_t j = 0; j < n_x; j += x_chunk) {
    const std::size_t n = n_x - j < x_chunk ? n_x - j : x_chunk;
    for (std::size_t i = 0; i < n_rows; i += tile_rows) {
      const std::size_t rows = n_rows - i < tile_rows ? n_rows - i : tile_rows;
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
      // A thread that computes one row goes on with the neighbouring rows, which are asked for even past the
      // end of this call: an address that does not exist is not an error.
      const std::size_t n_next = n_x == 1 ? k_lanes : after < tile_rows ? after : tile_rows;
      if (rows > k_lanes) {
        gemm_rows<Step, k_panels>(task, rows, n_next);
      } else {
        gemm_rows<Step, 1>(task, rows, n_next);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::simd
