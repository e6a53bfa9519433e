#pragma once

#include <cstddef>

#include "platform/cpu_features.hpp"

namespace sluice::kernels {

/// The rows of one value head, as the recurrence takes them: row t's q, k, v and y begin t * stride floats
/// behind the first's, its beta and decay t * gate_stride.
struct DeltaHead {
  const float *q, *k, *v;     ///< [head_dim]; of v the first of the block's columns.
  const float *beta, *decay;  ///< One number each.
  std::size_t stride, gate_stride;
  float* y;  ///< Of the block's columns; null: not wanted.
  std::size_t y_stride;
  std::size_t n_rows, head_dim;
};

/// The inner loops of the gated delta rule, built for one instruction set; same promises as VectorMath.
struct DeltaMath {
  /// y[c] = silu(sum over taps i, in order, of weights[c * n_taps + i] * inputs[i][c]); an input that is null
  /// is all zero.
  void (*convolve)(const float* const* inputs, const float* weights, std::size_t n_taps, std::size_t n,
                   float* y) noexcept;
  /// Takes a block of k_delta_columns columns of a head's state [head_dim, k_delta_columns] through all rows,
  /// one after the other. `from` may be `to`; null: all zero.
  void (*advance)(const float* from, float* to, const DeltaHead& head) noexcept;
};

const DeltaMath& delta_math(platform::Isa isa) noexcept;

}  // namespace sluice::kernels
