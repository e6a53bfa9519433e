// Grid (codebook) and ternary formats: integers with integer scales per 16 elements, like the K-quants.
#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {
namespace {

/// One grid point, negative where the bit of `signs` is set.
template <typename Point>
void put_point(const Point& point, unsigned signs, std::int8_t* out) noexcept {
  for (std::size_t e = 0; e < point.size(); ++e) {
    out[e] = static_cast<std::int8_t>((signs >> e & 1u) != 0 ? -point[e] : point[e]);
  }
}

/// 0.5 + digit, doubled to be an integer.
std::int8_t odd_scale(unsigned digit) noexcept {
  return static_cast<std::int8_t>(2 * digit + 1);
}

/// A nibble for every 16 elements.
void put_iq2_scales(const std::uint8_t (&scales)[8], std::int8_t* out) noexcept {
  for (std::size_t s = 0; s < 16; ++s) out[s] = odd_scale(scales[s / 2] >> 4 * (s % 2) & 0xfu);
}

/// Eight times (point + delta), delta = +-1/8.
void put_ternary(std::size_t index, bool negative_delta, std::int8_t* out) noexcept {
  const TernaryGrid& point = k_iq1_grid[index];
  const int delta = negative_delta ? -1 : 1;
  for (std::size_t e = 0; e < point.size(); ++e) out[e] = static_cast<std::int8_t>(8 * point[e] + delta);
}

/// Base-3 digit n of a byte: multiplying by 3^n modulo 256 leaves the fraction after the first n digits.
int base3_digit(std::uint8_t byte, std::size_t n) noexcept {
  constexpr std::uint8_t k_powers[5] = {1, 3, 9, 27, 81};
  const auto fraction = static_cast<std::uint8_t>(byte * k_powers[n]);
  return fraction * 3 >> 8;
}

void put_no_scales(std::int8_t* out) noexcept {
  for (std::size_t s = 0; s < 16; ++s) out[s] = 1;
}

}  // namespace

void unpack(const BlockIq2Xxs& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t word = block.groups[g].signs_scale;
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(word >> 28);
    for (std::size_t p = 0; p < 4; ++p) {
      put_point(k_iq2_xxs_grid[block.groups[g].index[p]], expand_signs(word >> 7 * p),
                out.q + 32 * g + 8 * p);
    }
  }
}

void unpack(const BlockIq2Xs& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  put_iq2_scales(block.scales, out.scale);
  for (std::size_t p = 0; p < 32; ++p) {
    const std::uint16_t word = block.qs[p];
    put_point(k_iq2_xs_grid[word & 511u], expand_signs(word >> 9), out.q + 8 * p);
  }
}

void unpack(const BlockIq2S& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  put_iq2_scales(block.scales, out.scale);
  for (std::size_t p = 0; p < 32; ++p) {
    const unsigned high = block.qh[p / 4] >> 2 * (p % 4) & 3u;
    put_point(k_iq2_s_grid[block.qs[p] | high << 8], block.signs[p], out.q + 8 * p);
  }
}

void unpack(const BlockIq3Xxs& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.25f;
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t word = block.signs_scale[g];
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(word >> 28);
    for (std::size_t p = 0; p < 8; ++p) {
      const unsigned signs = static_cast<unsigned>(expand_signs(word >> 7 * (p / 2))) >> 4 * (p % 2);
      put_point(k_iq3_xxs_grid[block.qs[8 * g + p]], signs, out.q + 32 * g + 4 * p);
    }
  }
}

void unpack(const BlockIq3S& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(block.scales[g / 2] >> 4 * (g % 2) & 0xfu);
  }
  for (std::size_t p = 0; p < 64; ++p) {
    const unsigned high = block.qh[p / 8] >> p % 8 & 1u;
    const unsigned signs = static_cast<unsigned>(block.signs[p / 2]) >> 4 * (p % 2);
    put_point(k_iq3_s_grid[block.qs[p] | high << 8], signs, out.q + 4 * p);
  }
}

void unpack(const BlockIq1S& block, Unpacked256& out) noexcept {
  out.d = block.d.value() * 0.125f;
  for (std::size_t g = 0; g < 8; ++g) {
    const unsigned word = block.qh[g];
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(word >> 12 & 7u);
    for (std::size_t p = 0; p < 4; ++p) {
      const std::size_t index = block.qs[4 * g + p] | (word >> 3 * p & 7u) << 8;
      put_ternary(index, (word & 0x8000u) != 0, out.q + 32 * g + 8 * p);
    }
  }
}

void unpack(const BlockIq1M& block, Unpacked256& out) noexcept {
  unsigned d_bits = 0;
  for (std::size_t s = 0; s < 4; ++s) d_bits |= static_cast<unsigned>(block.scales[s] >> 12) << 4 * s;
  out.d = f16_to_f32(static_cast<std::uint16_t>(d_bits)) * 0.125f;
  for (std::size_t s = 0; s < 16; ++s) out.scale[s] = odd_scale(block.scales[s / 4] >> 3 * (s % 4) & 7u);
  for (std::size_t p = 0; p < 32; ++p) {
    const unsigned nibble = block.qh[p / 2] >> 4 * (p % 2) & 0xfu;
    put_ternary(block.qs[p] | (nibble & 7u) << 8, (nibble & 8u) != 0, out.q + 8 * p);
  }
}

void unpack(const BlockTq1_0& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  put_no_scales(out.scale);
  const auto put = [&out](std::uint8_t byte, std::size_t digit, std::size_t element) {
    out.q[element] = static_cast<std::int8_t>(base3_digit(byte, digit) - 1);
  };
  for (std::size_t n = 0; n < 5; ++n) {
    for (std::size_t m = 0; m < 32; ++m) put(block.qs[m], n, 32 * n + m);
    for (std::size_t m = 0; m < 16; ++m) put(block.qs[32 + m], n, 160 + 16 * n + m);
  }
  for (std::size_t n = 0; n < 4; ++n) {
    for (std::size_t m = 0; m < 4; ++m) put(block.qh[m], n, 240 + 4 * n + m);
  }
}

void unpack(const BlockTq2_0& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  put_no_scales(out.scale);
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint8_t* qs = block.qs + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l) {
      out.q[32 * g + l] = static_cast<std::int8_t>((qs[l] >> 2 * (g % 4) & 3) - 1);
    }
  }
}

}  // namespace sluice::kernels::scalar
