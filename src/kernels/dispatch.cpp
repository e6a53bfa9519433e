#include "kernels/gemm.hpp"
#include "kernels/scalar/gemm_scalar.hpp"

#ifdef SLUICE_X86_KERNELS
#include "kernels/x86/x86_gemm.hpp"
#endif
#ifdef SLUICE_ARM_KERNELS
#include "kernels/arm/arm_gemm.hpp"
#endif

namespace sluice::kernels {

namespace {

/// The kernel of exactly this set; gemm == nullptr where this build, or the set, has none for the type. A set
/// that is missing here would silently get the slow kernels, so it does not compile.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wswitch"
GemmKernel find_own_gemm([[maybe_unused]] TensorType type, Isa isa) noexcept {
  switch (isa) {
    case Isa::scalar:
      return {};
    case Isa::neon:
#ifdef SLUICE_ARM_KERNELS
      return arm::find_neon_gemm(type);
#else
      return {};
#endif
    case Isa::avx2:
#ifdef SLUICE_X86_KERNELS
      return x86::find_avx2_gemm(type);
#else
      return {};
#endif
    case Isa::avx512:
#ifdef SLUICE_X86_KERNELS
      return x86::find_avx512_gemm(type);
#else
      return {};
#endif
  }
  return {};
}
#pragma GCC diagnostic pop

}  // namespace

GemmKernel find_gemm(TensorType type, Isa isa) noexcept {
  const GemmKernel kernel = find_own_gemm(type, isa);
  return kernel.gemm != nullptr ? kernel : scalar::find_scalar_gemm(type);
}

}  // namespace sluice::kernels
