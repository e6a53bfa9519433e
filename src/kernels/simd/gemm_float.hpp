#pragma once

// The driver of the float kernels (F32, F16, BF16, and every other type decoded to floats first). Include
// after the formats. One vector of k_lanes partial sums per element, columns in order, one fixed
// reduction.

#include "kernels/quant.hpp"

namespace sluice::kernels::simd {
namespace {

/// sums[r][t] += R weight rows times T activation rows over n columns; a last partial vector is filled with
/// zeros.
template <class Weights, int R, int T>
SLUICE_INLINE void multiply(const std::uint8_t* w, std::size_t w_row_bytes, const std::uint8_t* x,
                            std::size_t x_row_bytes, std::size_t n, Floats (&sums)[R][T]) noexcept {
  std::size_t k = 0;
  for (; k + k_lanes <= n; k += k_lanes) {
    Floats xs[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) xs[t] = loadf(reinterpret_cast<const float*>(x + t * x_row_bytes) + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Floats wr = Weights::load_lanes(w + r * w_row_bytes + k * Weights::k_bytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sums[r][t] = fma(wr, xs[t], sums[r][t]);
    }
  }
  if (k == n) return;
  for (int t = 0; t < T; ++t) {
    alignas(64) float x_tail[k_lanes] = {};
    __builtin_memcpy(x_tail, x + t * x_row_bytes + 4 * k, 4 * (n - k));
    for (int r = 0; r < R; ++r) {
      alignas(64) std::uint8_t w_tail[k_lanes * Weights::k_bytes] = {};
      __builtin_memcpy(w_tail, w + r * w_row_bytes + k * Weights::k_bytes, Weights::k_bytes * (n - k));
      sums[r][t] = fma(Weights::load_lanes(w_tail), loadf(x_tail), sums[r][t]);
    }
  }
}

template <class Weights, int R, int T>
void float_tile(const std::uint8_t* w, std::size_t w_row_bytes, const std::uint8_t* x,
                std::size_t x_row_bytes, std::size_t n_cols, float* y, std::size_t y_stride) noexcept {
  Floats sums[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) sums[r][t] = zerof();
  }
  multiply<Weights, R, T>(w, w_row_bytes, x, x_row_bytes, n_cols, sums);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) y[t * y_stride + r] = reduce(sums[r][t]);
  }
}

template <class Weights>
void float_gemm(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x,
                std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols, float* y,
                std::size_t y_stride) noexcept {
  constexpr int wide = 8;  // rows for one activation row: enough independent sums to hide the latency of fma
  const auto* weights = static_cast<const std::uint8_t*>(w);
  const auto* inputs = static_cast<const std::uint8_t*>(x);
  std::size_t i = 0;
  const auto rows = [&]<int R>() noexcept {
    const std::uint8_t* row = weights + i * w_row_bytes;
    std::size_t j = 0;
    if constexpr (R <= k_float_rows) {
      for (; j + k_float_x <= n_x; j += k_float_x) {
        float_tile<Weights, R, k_float_x>(row, w_row_bytes, inputs + j * x_row_bytes, x_row_bytes, n_cols,
                                          y + j * y_stride + i, y_stride);
      }
    }
    for (; j < n_x; ++j) {
      float_tile<Weights, R, 1>(row, w_row_bytes, inputs + j * x_row_bytes, x_row_bytes, n_cols,
                                y + j * y_stride + i, y_stride);
    }
    i += R;
  };
  if (n_x < k_float_x) {
    while (i + wide <= n_rows) rows.template operator()<wide>();
  }
  while (i + k_float_rows <= n_rows) rows.template operator()<k_float_rows>();
  while (i < n_rows) rows.template operator()<1>();
}

/// Any type that dequantize_row knows: pieces of four rows are decoded to the stack, then multiplied. The
/// partial sums of an element live through all pieces, so the arithmetic is that of F32 weights.
template <TensorType Type, int BlockElements, int BlockBytes>
void decoded_gemm(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x,
                  std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols, float* y,
                  std::size_t y_stride) noexcept {
  constexpr std::size_t piece = 256, max_rows = 4, max_x = 32;
  static_assert(piece % BlockElements == 0);
  alignas(64) float decoded[max_rows * piece];
  alignas(64) float sums[max_x * max_rows * k_lanes];
  for (std::size_t j0 = 0; j0 < n_x; j0 += max_x) {
    const std::size_t x_count = n_x - j0 < max_x ? n_x - j0 : max_x;
    for (std::size_t i0 = 0; i0 < n_rows; i0 += max_rows) {
      const std::size_t rows = n_rows - i0 < max_rows ? n_rows - i0 : max_rows;
      __builtin_memset(sums, 0, sizeof sums);
      for (std::size_t k = 0; k < n_cols; k += piece) {
        const std::size_t n = n_cols - k < piece ? n_cols - k : piece;
        for (std::size_t r = 0; r < rows; ++r) {
          const auto* source =
              static_cast<const std::uint8_t*>(w) + (i0 + r) * w_row_bytes + k / BlockElements * BlockBytes;
          dequantize_row(Type, source, decoded + r * piece, n);
        }
        const auto* panel = reinterpret_cast<const std::uint8_t*>(decoded);
        for (std::size_t j = 0; j < x_count; ++j) {
          const auto* row = static_cast<const std::uint8_t*>(x) + (j0 + j) * x_row_bytes + 4 * k;
          float* sum = sums + j * max_rows * k_lanes;
          if (rows == max_rows) {
            Floats part[max_rows][1];
            for (std::size_t r = 0; r < max_rows; ++r) part[r][0] = loadf(sum + r * k_lanes);
            multiply<F32, max_rows, 1>(panel, 4 * piece, row, x_row_bytes, n, part);
            for (std::size_t r = 0; r < max_rows; ++r) storef(sum + r * k_lanes, part[r][0]);
          } else {
            for (std::size_t r = 0; r < rows; ++r) {
              Floats part[1][1] = {{loadf(sum + r * k_lanes)}};
              multiply<F32, 1, 1>(panel + 4 * piece * r, 4 * piece, row, x_row_bytes, n, part);
              storef(sum + r * k_lanes, part[0][0]);
            }
          }
        }
      }
      for (std::size_t j = 0; j < x_count; ++j) {
        for (std::size_t r = 0; r < rows; ++r) {
          y[(j0 + j) * y_stride + i0 + r] = reduce(loadf(sums + (j * max_rows + r) * k_lanes));
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::simd
