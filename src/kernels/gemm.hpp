#pragma once

#include <cstddef>

#include "gguf/types.hpp"
#include "kernels/quant.hpp"
#include "platform/cpu_features.hpp"

namespace sluice::kernels {

using platform::Isa;

/// y[j * y_stride + i] = dot(weight row i, activation row j) for i in [0, n_rows), j in [0, n_x).
/// `w`: n_rows rows of n_cols elements in the type's GGUF blocks, w_row_bytes apart (any alignment).
/// `x`: n_x rows in the kernel's activation format, x_row_bytes apart, 64-byte aligned.
/// The order of additions for one (i, j) never depends on n_rows or n_x: results do not depend on the batch.
/// No allocation, no exception, no threads.
using GemmFunction = void (*)(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x,
                              std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols, float* y,
                              std::size_t y_stride) noexcept;
using QuantizeFunction = void (*)(const float* x, std::size_t n, void* out) noexcept;

struct GemmKernel {
  ActivationFormat activation = ActivationFormat::f32;
  GemmFunction gemm = nullptr;
  QuantizeFunction quantize = nullptr;
  Isa isa =
      Isa::scalar;  ///< The set it was built for; may be lower than asked when a type has no faster path.
};

/// The kernel for a weight type on an instruction set, or of the nearest set below that has one, at last the
/// scalar reference (isa_traits.hpp). Returns gemm == nullptr for types that are not multiplied (integers,
/// F64).
GemmKernel find_gemm(TensorType type, Isa isa) noexcept;

}  // namespace sluice::kernels
