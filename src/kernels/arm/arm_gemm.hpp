#pragma once

#include "kernels/gemm.hpp"

namespace sluice::kernels::arm {

/// Kernels for NEON with the dot-product extension; gemm == nullptr for types without a path of their own
/// there. Only to be called into (the kernels, not this function) when the machine has the extension.
GemmKernel find_neon_gemm(TensorType type) noexcept;

}  // namespace sluice::kernels::arm
