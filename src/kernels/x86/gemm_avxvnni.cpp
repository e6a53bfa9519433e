#include "kernels/x86/x86_gemm.hpp"

// The order matters: the vector vocabulary gives the other parts their meaning.
// clang-format off
#include "kernels/x86/vec_avxvnni.hpp"
#include "kernels/x86/dot_vnni.hpp"
#include "kernels/simd/scaled_dot.hpp"
#include "kernels/simd/pack.hpp"
#include "kernels/simd/pack_grid.hpp"
#include "kernels/simd/panel_dot.hpp"
#include "kernels/simd/fused_dot.hpp"
#include "kernels/simd/row_dot_fused.hpp"
#include "kernels/x86/row_dot_256.hpp"
#define SLUICE_VECTOR_FORMATS
#include "kernels/formats/all.hpp"
#include "kernels/simd/gemm_int8.hpp"
#include "kernels/simd/gemm_float.hpp"
#include "kernels/simd/quantize.hpp"
#include "kernels/simd/kernel_table.hpp"
// clang-format on

namespace sluice::kernels::x86 {

GemmKernel find_avxvnni_gemm(TensorType type) noexcept {
  return simd::find_kernel(type, Isa::avxvnni);
}

}  // namespace sluice::kernels::x86
