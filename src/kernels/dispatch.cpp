#include "kernels/gemm.hpp"
#include "kernels/scalar/gemm_scalar.hpp"

#ifdef SLUICE_X86_KERNELS
#include "kernels/x86/x86_gemm.hpp"
#endif
#ifdef SLUICE_ARM_KERNELS
#include "kernels/arm/arm_gemm.hpp"
#endif

namespace sluice::kernels {

GemmKernel find_gemm(TensorType type, Isa isa) noexcept {
  GemmKernel kernel;
#ifdef SLUICE_X86_KERNELS
  if (isa == Isa::avx512) kernel = x86::find_avx512_gemm(type);
  if (isa == Isa::avx2) kernel = x86::find_avx2_gemm(type);
#endif
#ifdef SLUICE_ARM_KERNELS
  if (isa == Isa::neon) kernel = arm::find_neon_gemm(type);
#endif
  static_cast<void>(isa);
  return kernel.gemm != nullptr ? kernel : scalar::find_scalar_gemm(type);
}

}  // namespace sluice::kernels
