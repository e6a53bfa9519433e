#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.hpp"

namespace sluice::kernels {

/// The angle of pair i at position p is p * frequencies[i]; cosines and sines are multiplied by the returned
/// magnitude. `frequencies` holds n_rot / 2 values. Linear scaling, divisors (llama3) and YaRN (Peng et al.
/// 2023, "NTK-by-parts": pairs that turn more than beta_fast times within n_ctx_orig keep their frequency,
/// those below beta_slow turns are interpolated, a linear ramp lies between).
double rope_frequencies(const RopeParams& params, std::span<double> frequencies) noexcept;

/// cosines[i], sines[i] of one position, computed in double and rounded once.
void rope_angles(std::span<const double> frequencies, double magnitude, std::uint32_t position,
                 float* cosines, float* sines) noexcept;

}  // namespace sluice::kernels
