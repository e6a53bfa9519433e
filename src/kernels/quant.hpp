#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/types.hpp"

namespace sluice::kernels {

using gguf::TensorType;

/// Decodes `n` elements (a multiple of the block size) of any float-like ggml type to f32: the exact scalar
/// reference. Integer types (I8 ... I64, F64) convert. Returns false for a type it cannot decode.
bool dequantize_row(TensorType type, const void* source, float* destination, std::size_t n) noexcept;

float f16_to_f32(std::uint16_t bits) noexcept;
std::uint16_t f32_to_f16(float value) noexcept;  ///< Round to nearest even; overflow to infinity; keeps NaN.
inline float bf16_to_f32(std::uint16_t bits) noexcept {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  return __builtin_bit_cast(float, wide);
}

/// How a weight type wants its activations. Weights are never expanded; activations are quantized once per
/// row.
///   f32    plain floats
///   q8_32  8 bit with one scale per 32 elements (partner of the 32-element block types)
///   q8_256 8 bit with one scale per 256 elements (partner of the K-quants and IQ types)
enum class ActivationFormat : std::uint8_t { f32, q8_32, q8_256 };

/// A quantized activation row is a structure of arrays, each part padded to 64 bytes:
///   q8_32 : int8 q[n] | float d[n/32]  | int32 sum[n/32]   (sum of q over the block)
///   q8_256: int8 q[n] | float d[n/256] | int16 sum[n/16]   (sum of q over each 16)
///   f32   : float x[n]
/// x ~ d * q, q = round-to-nearest-even(x / d) in [-127, 127], d = max|x| / 127 (0 for a zero block).
/// A block with an infinity or a NaN gets that as its d and q = 0, so its products are NaN, not wrong
/// numbers. Padding bytes are not written.
struct ActivationLayout {
  std::size_t scale_offset = 0, sum_offset = 0, row_bytes = 0;
};
/// `n` must be a multiple of the format's block (1, 32, 256).
ActivationLayout activation_layout(ActivationFormat format, std::size_t n) noexcept;

/// Quantizes one row (scalar reference; the SIMD versions give the same bits).
void quantize_activation(ActivationFormat format, const float* x, std::size_t n, void* out) noexcept;

}  // namespace sluice::kernels
