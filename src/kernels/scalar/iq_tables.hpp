#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace sluice::kernels::scalar {

// The codebooks of the IQ formats. They are part of the file format: an index in a file means exactly these
// points.

using Grid8 = std::array<std::uint8_t, 8>;  ///< Magnitudes of 8 elements; signs come from elsewhere.
using Grid4 = std::array<std::uint8_t, 4>;
using TernaryGrid = std::array<std::int8_t, 8>;

extern const std::array<Grid8, 256> k_iq2_xxs_grid;
extern const std::array<Grid8, 512> k_iq2_xs_grid;
extern const std::array<Grid8, 1024> k_iq2_s_grid;
extern const std::array<Grid4, 256> k_iq3_xxs_grid;
extern const std::array<Grid4, 512> k_iq3_s_grid;
extern const std::array<TernaryGrid, 2048> k_iq1_grid;   ///< IQ1_S and IQ1_M.
extern const std::array<Grid8, 2048> k_iq1_raised_grid;  ///< 8 * (element + 2), for the vector kernels.

// The same points, packed: bits 2 e of a point of eight elements, or 3 e of one of four, are the rank of the
// magnitude of element e.
extern const std::uint16_t k_iq2_xxs_packed[256];
extern const std::uint16_t k_iq2_xs_packed[512];
extern const std::uint16_t k_iq2_s_packed[1024];
extern const std::uint16_t k_iq3_xxs_packed[256];
extern const std::uint16_t k_iq3_s_packed[512];

/// Values of the non-linear 4-bit digits of IQ4_NL and IQ4_XS.
inline constexpr std::array<std::int8_t, 16> k_iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                             1,    13,   25,  38,  53,  69,  89,  113};

/// Twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0), so that they are integers.
inline constexpr std::array<std::int8_t, 16> k_fp4_values = {0, 1,  2,  3,  4,  6,  8,  12,
                                                             0, -1, -2, -3, -4, -6, -8, -12};

/// The eight sign bits of a 7-bit sign code: an even number of elements is negative, so the eighth bit is the
/// parity of the others.
constexpr std::uint8_t expand_signs(std::uint32_t code) noexcept {
  code &= 0x7f;
  return static_cast<std::uint8_t>(code | (std::popcount(code) & 1u) << 7);
}

}  // namespace sluice::kernels::scalar
