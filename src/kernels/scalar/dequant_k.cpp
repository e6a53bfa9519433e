// K-quants: blocks of 256 with integer scales per sub-block.
#include <bit>

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {
namespace {

/// The eight 6-bit scales and mins of Q4_K and Q5_K. Bytes 0-3 and 4-7 hold the first four scales and mins in
/// their low six bits; the other four have their low nibbles in bytes 8-11 (scale low, min high) and their
/// top two bits in the top bits of bytes 0-3 and 4-7. Each is written twice, once per 16 elements.
void unpack_scales_6bit(const std::uint8_t (&packed)[12], std::int8_t* scale, std::uint8_t* min) noexcept {
  for (std::size_t g = 0; g < 8; ++g) {
    unsigned s, m;
    if (g < 4) {
      s = packed[g] & 0x3f;
      m = packed[g + 4] & 0x3f;
    } else {
      s = (packed[g + 4] & 0xf) | (packed[g - 4] >> 6) << 4;
      m = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
    }
    scale[2 * g] = scale[2 * g + 1] = static_cast<std::int8_t>(s);
    min[2 * g] = min[2 * g + 1] = static_cast<std::uint8_t>(m);
  }
}

/// The 256 nibbles of Q4_K and Q5_K: every 32 bytes are 32 elements of low nibbles, then 32 of high ones.
void unpack_nibbles_by_64(const std::uint8_t (&qs)[128], std::int8_t* q) noexcept {
  for (std::size_t g = 0; g < 4; ++g) {
    for (std::size_t l = 0; l < 32; ++l) {
      q[64 * g + l] = static_cast<std::int8_t>(qs[32 * g + l] & 0xf);
      q[64 * g + 32 + l] = static_cast<std::int8_t>(qs[32 * g + l] >> 4);
    }
  }
}

}  // namespace

void unpack(const BlockQ2K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  out.d_min = block.dmin.value();
  for (std::size_t s = 0; s < 16; ++s) {
    out.scale[s] = static_cast<std::int8_t>(block.scales[s] & 0xf);
    out.min[s] = block.scales[s] >> 4;
  }
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint8_t* qs = block.qs + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l)
      out.q[32 * g + l] = static_cast<std::int8_t>(qs[l] >> 2 * (g % 4) & 3);
  }
}

void unpack(const BlockQ3K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t s = 0; s < 16; ++s) {
    const int low = s < 8 ? block.scales[s] & 0xf : block.scales[s - 8] >> 4;
    const int high = block.scales[8 + s % 4] >> 2 * (s / 4) & 3;
    out.scale[s] = static_cast<std::int8_t>((low | high << 4) - 32);
  }
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint8_t* qs = block.qs + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l) {
      const int low = qs[l] >> 2 * (g % 4) & 3;
      const int high = block.hmask[l] >> g & 1;
      out.q[32 * g + l] = static_cast<std::int8_t>(low + 4 * high - 4);
    }
  }
}

void unpack(const BlockQ4K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  out.d_min = block.dmin.value();
  unpack_scales_6bit(block.scales, out.scale, out.min);
  unpack_nibbles_by_64(block.qs, out.q);
}

void unpack(const BlockQ5K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  out.d_min = block.dmin.value();
  unpack_scales_6bit(block.scales, out.scale, out.min);
  unpack_nibbles_by_64(block.qs, out.q);
  for (std::size_t g = 0; g < 8; ++g) {
    for (std::size_t l = 0; l < 32; ++l) {
      out.q[32 * g + l] = static_cast<std::int8_t>(out.q[32 * g + l] | (block.qh[l] >> g & 1) << 4);
    }
  }
}

void unpack(const BlockQ6K& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t s = 0; s < 16; ++s) out.scale[s] = block.scales[s];
  for (std::size_t g = 0; g < 8; ++g) {
    const std::size_t part = g % 4;
    const std::uint8_t* ql = block.ql + 64 * (g / 4) + 32 * (part % 2);
    const std::uint8_t* qh = block.qh + 32 * (g / 4);
    for (std::size_t l = 0; l < 32; ++l) {
      const int low = ql[l] >> 4 * (part / 2) & 0xf;
      const int high = qh[l] >> 2 * part & 3;
      out.q[32 * g + l] = static_cast<std::int8_t>((low | high << 4) - 32);
    }
  }
}

void unpack(const BlockIq4Xs& block, Unpacked256& out) noexcept {
  out.d = block.d.value();
  for (std::size_t g = 0; g < 8; ++g) {
    const int low = block.scales_l[g / 2] >> 4 * (g % 2) & 0xf;
    const int high = block.scales_h >> 2 * g & 3;
    out.scale[2 * g] = out.scale[2 * g + 1] = static_cast<std::int8_t>((low | high << 4) - 32);
    for (std::size_t l = 0; l < 16; ++l) {
      const std::uint8_t digits = block.qs[16 * g + l];
      out.q[32 * g + l] = k_iq4_values[digits & 0xf];
      out.q[32 * g + 16 + l] = k_iq4_values[digits >> 4];
    }
  }
}

void finish(const Unpacked256& block, float* out) noexcept {
  for (std::size_t s = 0; s < 16; ++s) {
    const float scale = block.d * static_cast<float>(block.scale[s]);
    // Without a minimum this is +0, and subtracting +0 changes no bit.
    const float min = block.d_min * static_cast<float>(block.min[s]);
    for (std::size_t l = 16 * s; l < 16 * (s + 1); ++l) out[l] = scale * static_cast<float>(block.q[l]) - min;
  }
}

void decode(const BlockQ8K& block, float* out) noexcept {
  const float d = std::bit_cast<float>(std::uint32_t{block.d});
  for (std::size_t l = 0; l < BlockQ8K::k_elements; ++l) out[l] = d * static_cast<float>(block.qs[l]);
}

}  // namespace sluice::kernels::scalar
