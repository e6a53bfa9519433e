// Grid (codebook) and ternary formats: decoded straight to floats.
#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {
namespace {

/// One grid point: out[e] = scale * point[e], negative where the bit of `signs` is set.
template <typename Point>
void write_point(const Point& point, float scale, unsigned signs, float* out) noexcept {
  for (std::size_t e = 0; e < point.size(); ++e) {
    const float value = scale * static_cast<float>(point[e]);
    out[e] = (signs >> e & 1u) != 0 ? -value : value;
  }
}

/// Scales of the 2-bit grid formats: a nibble for every 16 elements.
float iq2_scale(float d, const std::uint8_t (&scales)[8], std::size_t sixteenth) noexcept {
  const int nibble = scales[sixteenth / 2] >> 4 * (sixteenth % 2) & 0xf;
  return d * (0.5f + static_cast<float>(nibble)) * 0.25f;
}

constexpr float k_iq1_delta = 0.125f;

void write_ternary(std::size_t index, float scale, bool negative_delta, float* out) noexcept {
  const float delta = negative_delta ? -k_iq1_delta : k_iq1_delta;
  const TernaryGrid& point = k_iq1_grid[index];
  for (std::size_t e = 0; e < point.size(); ++e) out[e] = scale * (static_cast<float>(point[e]) + delta);
}

/// Base-3 digit n of a byte: multiplying by 3^n modulo 256 leaves the fraction after the first n digits.
int base3_digit(std::uint8_t byte, std::size_t n) noexcept {
  constexpr std::uint8_t k_powers[5] = {1, 3, 9, 27, 81};
  const auto fraction = static_cast<std::uint8_t>(byte * k_powers[n]);
  return fraction * 3 >> 8;
}

}  // namespace

void decode(const BlockIq2Xxs& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t word = block.groups[g].signs_scale;
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    for (std::size_t p = 0; p < 4; ++p) {
      const std::uint8_t signs = expand_signs(word >> 7 * p);
      write_point(k_iq2_xxs_grid[block.groups[g].index[p]], scale, signs, out + 32 * g + 8 * p);
    }
  }
}

void decode(const BlockIq2Xs& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t p = 0; p < 32; ++p) {
    const std::uint16_t word = block.qs[p];
    const float scale = iq2_scale(d, block.scales, p / 2);
    write_point(k_iq2_xs_grid[word & 511u], scale, expand_signs(word >> 9), out + 8 * p);
  }
}

void decode(const BlockIq2S& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t p = 0; p < 32; ++p) {
    const unsigned high = block.qh[p / 4] >> 2 * (p % 4) & 3u;
    const float scale = iq2_scale(d, block.scales, p / 2);
    write_point(k_iq2_s_grid[block.qs[p] | high << 8], scale, block.signs[p], out + 8 * p);
  }
}

void decode(const BlockIq3Xxs& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t word = block.signs_scale[g];
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    for (std::size_t p = 0; p < 8; ++p) {
      const unsigned signs = expand_signs(word >> 7 * (p / 2)) >> 4 * (p % 2);
      write_point(k_iq3_xxs_grid[block.qs[8 * g + p]], scale, signs, out + 32 * g + 4 * p);
    }
  }
}

void decode(const BlockIq3S& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t p = 0; p < 64; ++p) {
    const std::size_t g = p / 8;
    const int nibble = block.scales[g / 2] >> 4 * (g % 2) & 0xf;
    const float scale = d * static_cast<float>(1 + 2 * nibble);
    const unsigned high = block.qh[g] >> p % 8 & 1u;
    const unsigned signs = block.signs[p / 2] >> 4 * (p % 2);
    write_point(k_iq3_s_grid[block.qs[p] | high << 8], scale, signs, out + 4 * p);
  }
}

void decode(const BlockIq1S& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    const unsigned word = block.qh[g];
    const float scale = d * static_cast<float>(2 * (word >> 12 & 7u) + 1);
    for (std::size_t p = 0; p < 4; ++p) {
      const std::size_t index = block.qs[4 * g + p] | (word >> 3 * p & 7u) << 8;
      write_ternary(index, scale, (word & 0x8000u) != 0, out + 32 * g + 8 * p);
    }
  }
}

void decode(const BlockIq1M& block, float* out) noexcept {
  unsigned d_bits = 0;
  for (std::size_t s = 0; s < 4; ++s) d_bits |= static_cast<unsigned>(block.scales[s] >> 12) << 4 * s;
  const float d = f16_to_f32(static_cast<std::uint16_t>(d_bits));
  for (std::size_t p = 0; p < 32; ++p) {
    const std::size_t sixteenth = p / 2;
    const unsigned digit = block.scales[sixteenth / 4] >> 3 * (sixteenth % 4) & 7u;
    const unsigned nibble = block.qh[p / 2] >> 4 * (p % 2) & 0xfu;
    const std::size_t index = block.qs[p] | (nibble & 7u) << 8;
    write_ternary(index, d * static_cast<float>(2 * digit + 1), (nibble & 8u) != 0, out + 8 * p);
  }
}

void decode(const BlockTq1_0& block, float* out) noexcept {
  const float d = block.d.value();
  const auto write = [d, out](std::uint8_t byte, std::size_t digit, std::size_t element) {
    out[element] = d * static_cast<float>(base3_digit(byte, digit) - 1);
  };
  for (std::size_t n = 0; n < 5; ++n) {
    for (std::size_t m = 0; m < 32; ++m) write(block.qs[m], n, 32 * n + m);
    for (std::size_t m = 0; m < 16; ++m) write(block.qs[32 + m], n, 160 + 16 * n + m);
  }
  for (std::size_t n = 0; n < 4; ++n) {
    for (std::size_t m = 0; m < 4; ++m) write(block.qh[m], n, 240 + 4 * n + m);
  }
}

void decode(const BlockTq2_0& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint8_t* qs = block.qs + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l) {
      out[32 * g + l] = d * static_cast<float>((qs[l] >> 2 * (g % 4) & 3) - 1);
    }
  }
}

}  // namespace sluice::kernels::scalar
