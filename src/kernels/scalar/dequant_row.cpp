#include "kernels/quant.hpp"
#include "kernels/scalar/decode.hpp"

namespace sluice::kernels {

bool dequantize_row(TensorType type, const void* source, float* destination, std::size_t n) noexcept {
  return scalar::visit_block(
      type, [&]<typename Block>() { scalar::decode_row<Block>(source, destination, n); });
}

}  // namespace sluice::kernels
