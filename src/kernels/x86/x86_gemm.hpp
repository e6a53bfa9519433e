#pragma once

#include "kernels/gemm.hpp"

namespace sluice::kernels::x86 {

/// Kernels of one instruction set; gemm == nullptr for types without a path of their own there. Only to be
/// called into (the kernels, not these functions) when the machine supports the set.
GemmKernel find_avx2_gemm(TensorType type) noexcept;
GemmKernel find_avxvnni_gemm(TensorType type) noexcept;
GemmKernel find_avx512_gemm(TensorType type) noexcept;

}  // namespace sluice::kernels::x86
