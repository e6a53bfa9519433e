#include <bit>
#include <cstdint>

#include "kernels/quant.hpp"

namespace sluice::kernels {

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. Integer arithmetic only, so the result
// does not depend on the rounding mode or on flush-to-zero of the machine.

float f16_to_f32(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // Subnormal: mantissa * 2^-24, normalized so that its top bit becomes the hidden one.
  const auto shift = static_cast<std::uint32_t>(std::countl_zero(mantissa)) - 21;
  return std::bit_cast<float>(sign | (113 - shift) << 23 | (mantissa << shift & 0x3ffu) << 13);
}

std::uint16_t f32_to_f16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    // Keep the payload's top bits and make the NaN quiet, as the hardware conversions do.
    return static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  }
  // From 65520, half-way between the largest half and 2^16, everything rounds to infinity.
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  std::uint32_t shift = 13;
  std::uint32_t significand =
      magnitude - (112u << 23);   // Rebias; the carry of rounding may enter the exponent.
  if (magnitude < 0x38800000u) {  // Below 2^-14: a subnormal half, in units of 2^-24.
    const std::uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return static_cast<std::uint16_t>(sign);  // Below 2^-25, half of the smallest.
    shift = 126 - exponent;
    significand = (magnitude & 0x7fffffu) | 0x800000u;
  }
  const std::uint32_t half = 1u << (shift - 1);
  const std::uint32_t rest = significand & (2 * half - 1);
  std::uint32_t result = significand >> shift;
  if (rest > half || (rest == half && (result & 1u) != 0)) ++result;
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace sluice::kernels
