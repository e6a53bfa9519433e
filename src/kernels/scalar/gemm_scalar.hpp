#pragma once

#include "kernels/gemm.hpp"

namespace sluice::kernels::scalar {

/// The reference kernel of every float-like type; gemm == nullptr for integers, F64 and unknown ids. Blocks
/// of 32 and of parts of 16 or 32 meet q8_32 activations, K-quants, IQ and TQ types meet q8_256, everything
/// else is decoded and meets f32.
///
/// Order of additions for one output: the integer dot product of a block (all of its sub-blocks) is exact,
/// its float terms are formed as (d_w * d_x) * dot and, with minimums, + (m_w * d_x) * sum; blocks are added
/// in order. The decoded path sums chunks of 256 columns in 16 interleaved partial sums, and adds the chunks
/// in order.
GemmKernel find_scalar_gemm(TensorType type) noexcept;

}  // namespace sluice::kernels::scalar
