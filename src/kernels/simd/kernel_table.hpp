#pragma once

// Maps weight types to the kernels of one instruction set. Include after all other parts.

#include "gguf/types.hpp"
#include "kernels/gemm.hpp"

namespace sluice::kernels::simd {
namespace {

template <class Step>
GemmKernel int8_kernel(Isa isa) noexcept {
  constexpr bool k256 = Step::k_activation == ActivationFormat::q8_256;
  return {Step::k_activation, gemm<Step>, k256 ? quantize_q8_256 : quantize_q8_32, isa};
}

GemmKernel float_kernel(GemmFunction function, Isa isa) noexcept {
  return {ActivationFormat::f32, function, quantize_f32, isa};
}

/// What a format's header says decides its kind.
template <class Format, int BlockElements>
GemmKernel kernel_of(Isa isa) noexcept {
  if constexpr (BlockElements == 1) {
    return float_kernel(float_gemm<Format>, isa);
  } else if constexpr (BlockElements != 256) {
    return int8_kernel<Q32Step<Format>>(isa);
  } else if constexpr (requires { Format::k_signs; }) {
    return int8_kernel<KStep<Grid<Format>>>(isa);
  } else {
    return int8_kernel<KStep<Format>>(isa);
  }
}

/// gemm == nullptr for types without a path here.
GemmKernel find_kernel(TensorType type, Isa isa) noexcept {
  switch (type) {
#define SLUICE_KERNEL_weight(type, Code, elements, bytes) return kernel_of<Code, elements>(isa)
#define SLUICE_KERNEL_activation(type, Code, elements, bytes) \
  return float_kernel(decoded_gemm<TensorType::type, elements, bytes>, isa)
#define SLUICE_KERNEL_number(type, Code, elements, bytes) \
  return {}
#define SLUICE_TYPE(id, type, Code, name, elements, bytes, use, similar) \
  case TensorType::type:                                                 \
    SLUICE_KERNEL_##use(type, Code, elements, bytes);
#include "gguf/types.def"
#undef SLUICE_KERNEL_weight
#undef SLUICE_KERNEL_activation
#undef SLUICE_KERNEL_number
  }
  return {};
}

}  // namespace
}  // namespace sluice::kernels::simd
