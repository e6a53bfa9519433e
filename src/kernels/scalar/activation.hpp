#pragma once

#include <cstddef>

// One row each, in the layouts of ActivationFormat (quant.hpp). `n` is a multiple of the block. Bytes between
// the parts of a row are left as they were. Rules that every version, scalar or not, keeps bit for bit:
//   - d = max|x| / 127, the maximum taken over the bit patterns of |x|, so that infinities and NaNs win;
//   - when d is 0, infinite or NaN, all q are 0. A row with an infinity or a NaN thus gives NaN in every
//   product
//     with that block instead of a wrong number;
//   - otherwise q = x / d (a division), clamped to [-127, 127], rounded to nearest even. The clamp matters
//   only
//     where d is subnormal and therefore coarse.
namespace sluice::kernels::scalar {

void quantize_f32(const float* x, std::size_t n, void* out) noexcept;
void quantize_q8_32(const float* x, std::size_t n, void* out) noexcept;
void quantize_q8_256(const float* x, std::size_t n, void* out) noexcept;

}  // namespace sluice::kernels::scalar
