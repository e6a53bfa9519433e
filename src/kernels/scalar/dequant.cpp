#include "kernels/scalar/visit_block.hpp"

namespace sluice::kernels::scalar {

void finish(const Unpacked32& block, float* out) noexcept {
  for (std::size_t j = 0; j < 32; ++j) out[j] = block.scale * static_cast<float>(block.q[j]) + block.min;
}

void finish(const Unpacked256& block, float* out) noexcept {
  for (std::size_t s = 0; s < 16; ++s) {
    const float scale = block.d * static_cast<float>(block.scale[s]);
    // Without a minimum this is +0, and subtracting +0 changes no bit.
    const float min = block.d_min * static_cast<float>(block.min[s]);
    for (std::size_t l = 16 * s; l < 16 * (s + 1); ++l) out[l] = scale * static_cast<float>(block.q[l]) - min;
  }
}

}  // namespace sluice::kernels::scalar

namespace sluice::kernels {

bool dequantize_row(TensorType type, const void* source, float* destination, std::size_t n) noexcept {
  return scalar::visit_block(type,
                             [&]<typename Block>() { scalar::decode_row<Block>(source, destination, n); });
}

}  // namespace sluice::kernels
