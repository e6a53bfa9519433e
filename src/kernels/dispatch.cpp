#include "kernels/isa_traits.hpp"
#include "kernels/scalar/gemm_scalar.hpp"
#include "kernels/vector_targets.hpp"

#ifdef SLUICE_X86_KERNELS
#include "kernels/x86/x86_gemm.hpp"
#define SLUICE_GEMM_x86(name) x86::find_##name##_gemm
#else
#define SLUICE_GEMM_x86(name) nullptr
#endif
#ifdef SLUICE_ARM_KERNELS
#include "kernels/arm/arm_gemm.hpp"
#define SLUICE_GEMM_arm(name) arm::find_##name##_gemm
#else
#define SLUICE_GEMM_arm(name) nullptr
#endif
#define SLUICE_GEMM_any(name) scalar::find_##name##_gemm

namespace sluice::kernels {

// What vector_math.cpp, attention_math.cpp and delta_math.cpp define once for each of their targets.
#define SLUICE_ISA(name, below, family, target)      \
  namespace N_##target {                             \
    const VectorMath& vector_table() noexcept;       \
    const AttentionMath& attention_table() noexcept; \
    const DeltaMath& delta_table() noexcept;         \
  }
#include "platform/isas.def"

#if !(HWY_TARGETS & HWY_EMU128)
namespace N_SCALAR {
const VectorMath& vector_table() noexcept;
const AttentionMath& attention_table() noexcept;
const DeltaMath& delta_table() noexcept;
}  // namespace N_SCALAR
#endif

namespace {

constexpr IsaTraits k_isas[] = {
#define SLUICE_ISA(name, below, family, target) \
  {Isa::name,                                   \
   Isa::below,                                  \
   SLUICE_GEMM_##family(name),                  \
   SLUICE_##target##_TARGET(vector_table),      \
   SLUICE_##target##_TARGET(attention_table),   \
   SLUICE_##target##_TARGET(delta_table)},
#include "platform/isas.def"
};

}  // namespace

std::span<const IsaTraits> isa_table() noexcept {
  return k_isas;
}

GemmKernel serving_gemm(std::span<const IsaTraits> table, TensorType type, Isa isa) noexcept {
  for (;;) {
    const IsaTraits& traits = table[static_cast<std::size_t>(isa)];
    const GemmKernel kernel = traits.find_gemm != nullptr ? traits.find_gemm(type) : GemmKernel{};
    if (kernel.gemm != nullptr || isa == Isa::scalar) return kernel;
    isa = traits.below;
  }
}

GemmKernel find_gemm(TensorType type, Isa isa) noexcept {
  return serving_gemm(k_isas, type, isa);
}

const VectorMath& vector_math(Isa isa) noexcept {
  return serving(std::span<const IsaTraits>(k_isas), isa, &IsaTraits::vector_math)();
}

const AttentionMath& attention_math(Isa isa) noexcept {
  return serving(std::span<const IsaTraits>(k_isas), isa, &IsaTraits::attention_math)();
}

const DeltaMath& delta_math(Isa isa) noexcept {
  return serving(std::span<const IsaTraits>(k_isas), isa, &IsaTraits::delta_math)();
}

}  // namespace sluice::kernels
