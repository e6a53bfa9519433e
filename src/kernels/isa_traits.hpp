#pragma once

#include <span>

#include "kernels/delta_math.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector_math.hpp"

namespace sluice::kernels {

/// What one instruction set has of its own; null where this build has nothing for it.
struct IsaTraits {
  Isa isa = Isa::scalar;
  Isa below = Isa::scalar;  ///< The set that serves instead; scalar has everything.
  GemmKernel (*find_gemm)(TensorType type) noexcept =
      nullptr;  ///< Its kernel; gemm == nullptr: none for this type.
  const VectorMath& (*vector_math)() noexcept = nullptr;
  const AttentionMath& (*attention_math)() noexcept = nullptr;
  const DeltaMath& (*delta_math)() noexcept = nullptr;
};

/// One entry for each set of platform/isas.def, in its order.
std::span<const IsaTraits> isa_table() noexcept;

/// The member of `isa`, or of the nearest set below that has it. Pure in the table, which must have all of
/// them for scalar.
template <typename Function>
Function serving(std::span<const IsaTraits> table, Isa isa, Function IsaTraits::*member) noexcept {
  const IsaTraits* traits = &table[static_cast<std::size_t>(isa)];
  while (traits->*member == nullptr) traits = &table[static_cast<std::size_t>(traits->below)];
  return traits->*member;
}

/// The kernel for a type of `isa`, or of the nearest set below that has one; gemm == nullptr when none has.
GemmKernel serving_gemm(std::span<const IsaTraits> table, TensorType type, Isa isa) noexcept;

}  // namespace sluice::kernels
