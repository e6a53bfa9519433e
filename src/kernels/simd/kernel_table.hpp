#pragma once

// Maps weight types to the kernels of one instruction set. Include after all other parts.

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

/// Types with 8-bit products in steps of one block of 256 elements.
GemmKernel find_step_256(TensorType type, Isa isa) noexcept {
  using enum TensorType;
  switch (type) {
    case q2_k:
      return int8_kernel<KStep<Q2K>>(isa);
    case q3_k:
      return int8_kernel<KStep<Q3K>>(isa);
    case q4_k:
      return int8_kernel<KStep<Q4K>>(isa);
    case q5_k:
      return int8_kernel<KStep<Q5K>>(isa);
    case q6_k:
      return int8_kernel<KStep<Q6K>>(isa);
    case iq4_xs:
      return int8_kernel<KStep<Iq4Xs>>(isa);
    case iq2_xxs:
      return int8_kernel<KStep<Grid<Iq2Xxs>>>(isa);
    case iq2_xs:
      return int8_kernel<KStep<Grid<Iq2Xs>>>(isa);
    case iq2_s:
      return int8_kernel<KStep<Grid<Iq2S>>>(isa);
    case iq3_xxs:
      return int8_kernel<KStep<Grid<Iq3Xxs>>>(isa);
    case iq3_s:
      return int8_kernel<KStep<Grid<Iq3S>>>(isa);
    case iq1_s:
      return int8_kernel<KStep<Grid<Iq1S>>>(isa);
    case iq1_m:
      return int8_kernel<KStep<Grid<Iq1M>>>(isa);
    case tq1_0:
      return int8_kernel<KStep<Grid<Tq1>>>(isa);
    case tq2_0:
      return int8_kernel<KStep<Grid<Tq2>>>(isa);
    default:
      return {};
  }
}

/// gemm == nullptr for types without a path here.
GemmKernel find_kernel(TensorType type, Isa isa) noexcept {
  using enum TensorType;
  switch (type) {
    case f32:
      return float_kernel(float_gemm<F32Weights>, isa);
    case f16:
      return float_kernel(float_gemm<F16Weights>, isa);
    case bf16:
      return float_kernel(float_gemm<Bf16Weights>, isa);
    case q4_0:
      return int8_kernel<Q32Step<Q40>>(isa);
    case q4_1:
      return int8_kernel<Q32Step<Q41>>(isa);
    case q5_0:
      return int8_kernel<Q32Step<Q50>>(isa);
    case q5_1:
      return int8_kernel<Q32Step<Q51>>(isa);
    case q8_0:
      return int8_kernel<Q32Step<Q80>>(isa);
    case iq4_nl:
      return int8_kernel<Q32Step<Iq4Nl>>(isa);
    case mxfp4:
      return int8_kernel<Q32Step<Mxfp4>>(isa);
    case nvfp4:
      return float_kernel(decoded_gemm<nvfp4, 64, 36>, isa);
    case q8_1:
      return float_kernel(decoded_gemm<q8_1, 32, 36>, isa);
    case q8_k:
      return float_kernel(decoded_gemm<q8_k, 256, 292>, isa);
    default:
      return find_step_256(type, isa);
  }
}

}  // namespace
}  // namespace sluice::kernels::simd
