#include "kernels/x86/x86_gemm.hpp"

// The order matters: the vector vocabulary gives the other parts their meaning.
// clang-format off
#include "kernels/x86/vec_avx2.hpp"
#include "kernels/x86/pack_q32.hpp"
#include "kernels/x86/pack_k.hpp"
#include "kernels/x86/panel_dot.hpp"
#include "kernels/x86/gemm_int8.hpp"
#include "kernels/x86/gemm_float.hpp"
#include "kernels/x86/quantize.hpp"
#include "kernels/x86/kernel_table.hpp"
// clang-format on

namespace sluice::kernels::x86 {

GemmKernel find_avx2_gemm(TensorType type) noexcept {
  return find_kernel(type, Isa::avx2);
}

}  // namespace sluice::kernels::x86
