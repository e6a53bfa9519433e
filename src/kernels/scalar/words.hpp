#pragma once

#include <cstdint>

#include "kernels/quant.hpp"

// What blocks of weights are made of. All members are bytes, so every block has alignment 1 and its exact
// file size: a row may lie at any address of a read buffer.
namespace sluice::kernels::scalar {

/// Little-endian words at any address; compilers make one load of them.
struct Le16 {
  std::uint8_t bytes[2];
  constexpr operator std::uint16_t() const noexcept {
    return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8);
  }
};
struct Le32 {
  std::uint8_t bytes[4];
  constexpr operator std::uint32_t() const noexcept {
    return std::uint32_t{bytes[0]} | std::uint32_t{bytes[1]} << 8 | std::uint32_t{bytes[2]} << 16 |
           std::uint32_t{bytes[3]} << 24;
  }
};
struct Le64 {
  Le32 low, high;
  constexpr operator std::uint64_t() const noexcept { return low | std::uint64_t{high} << 32; }
};
struct Half {
  Le16 bits;
  float value() const noexcept { return f16_to_f32(bits); }
};

}  // namespace sluice::kernels::scalar
