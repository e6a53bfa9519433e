// Elements that are plain numbers, blocks of 32 (or 64) with one scale, and the choice of decoder for a whole
// row.
#include <bit>

#include "kernels/scalar/decode.hpp"
#include "kernels/scalar/iq_tables.hpp"

namespace sluice::kernels::scalar {
namespace {

constexpr std::size_t k_half = 16;

/// The nibbles of 16 bytes as 32 digits: low ones are elements 0-15, high ones 16-31.
void split_nibbles(const std::uint8_t (&qs)[k_half], std::uint8_t* digits) noexcept {
  for (std::size_t j = 0; j < k_half; ++j) {
    digits[j] = qs[j] & 0xf;
    digits[j + k_half] = qs[j] >> 4;
  }
}

void unpack_nibbles(const std::uint8_t (&qs)[k_half], std::uint32_t fifth_bits, int zero,
                    std::int8_t* q) noexcept {
  std::uint8_t digits[2 * k_half];
  split_nibbles(qs, digits);
  for (std::size_t j = 0; j < 2 * k_half; ++j) {
    const int digit = digits[j] | static_cast<int>(fifth_bits >> j & 1u) << 4;
    q[j] = static_cast<std::int8_t>(digit - zero);
  }
}

void look_up_nibbles(const std::uint8_t (&qs)[k_half], const std::array<std::int8_t, 16>& values,
                     std::int8_t* q) noexcept {
  std::uint8_t digits[2 * k_half];
  split_nibbles(qs, digits);
  for (std::size_t j = 0; j < 2 * k_half; ++j) q[j] = values[digits[j]];
}

/// 2^(e - 128): half of the E8M0 scale 2^(e - 127), because the FP4 table is doubled. Exponents 0 and 1 give
/// subnormal floats. The format's NaN (255) is taken as a number, as ggml does.
float half_of_e8m0(std::uint8_t e) noexcept {
  const std::uint32_t bits = e < 2 ? 0x00200000u << e : (std::uint32_t{e} - 1) << 23;
  return std::bit_cast<float>(bits);
}

/// Half of an unsigned E4M3 number (bias 7, top bit unused); 0x7f, its NaN, counts as 0, as ggml does.
float half_of_ue4m3(std::uint8_t bits) noexcept {
  if (bits == 0x7f) return 0.0f;
  const int exponent = bits >> 3 & 0xf;
  const auto mantissa = static_cast<float>(bits & 7);
  if (exponent == 0) return mantissa * 0x1p-10f;
  const float power = std::bit_cast<float>(static_cast<std::uint32_t>(exponent - 8 + 127) << 23);
  return (1.0f + mantissa * 0.125f) * power;
}

}  // namespace

void decode(const BlockF32& block, float* out) noexcept {
  *out = std::bit_cast<float>(std::uint32_t{block.bits});
}
void decode(const BlockF16& block, float* out) noexcept {
  *out = block.value.value();
}
void decode(const BlockBf16& block, float* out) noexcept {
  *out = bf16_to_f32(block.bits);
}
void decode(const BlockF64& block, float* out) noexcept {
  *out = static_cast<float>(std::bit_cast<double>(std::uint64_t{block.bits}));
}
void decode(const BlockI8& block, float* out) noexcept {
  *out = block.value;
}
void decode(const BlockI16& block, float* out) noexcept {
  *out = static_cast<std::int16_t>(std::uint16_t{block.bits});
}
void decode(const BlockI32& block, float* out) noexcept {
  *out = static_cast<float>(static_cast<std::int32_t>(std::uint32_t{block.bits}));
}
void decode(const BlockI64& block, float* out) noexcept {
  *out = static_cast<float>(static_cast<std::int64_t>(std::uint64_t{block.bits}));
}

void unpack(const BlockQ4_0& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  unpack_nibbles(block.qs, 0, 8, out.q);
}

void unpack(const BlockQ4_1& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  out.min = block.m.value();
  unpack_nibbles(block.qs, 0, 0, out.q);
}

void unpack(const BlockQ5_0& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  unpack_nibbles(block.qs, block.qh, 16, out.q);
}

void unpack(const BlockQ5_1& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  out.min = block.m.value();
  unpack_nibbles(block.qs, block.qh, 0, out.q);
}

void unpack(const BlockQ8_0& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  for (std::size_t j = 0; j < BlockQ8_0::k_elements; ++j) out.q[j] = block.qs[j];
}

void unpack(const BlockIq4Nl& block, Unpacked32& out) noexcept {
  out.scale = block.d.value();
  look_up_nibbles(block.qs, k_iq4_values, out.q);
}

void unpack(const BlockMxfp4& block, Unpacked32& out) noexcept {
  out.scale = half_of_e8m0(block.e);
  look_up_nibbles(block.qs, k_fp4_values, out.q);
}

void finish(const Unpacked32& block, float* out) noexcept {
  for (std::size_t j = 0; j < 32; ++j) out[j] = block.scale * static_cast<float>(block.q[j]) + block.min;
}

void decode(const BlockQ8_1& block, float* out) noexcept {
  const float d = block.d.value();
  for (std::size_t j = 0; j < BlockQ8_1::k_elements; ++j) out[j] = d * static_cast<float>(block.qs[j]);
}

void decode(const BlockNvfp4& block, float* out) noexcept {
  for (std::size_t s = 0; s < 4; ++s) {
    const float d = half_of_ue4m3(block.d[s]);
    for (std::size_t j = 0; j < 8; ++j) {
      const std::uint8_t digits = block.qs[8 * s + j];
      out[16 * s + j] = d * static_cast<float>(k_fp4_values[digits & 0xf]);
      out[16 * s + 8 + j] = d * static_cast<float>(k_fp4_values[digits >> 4]);
    }
  }
}

}  // namespace sluice::kernels::scalar

namespace sluice::kernels {

bool dequantize_row(TensorType type, const void* source, float* destination, std::size_t n) noexcept {
  return scalar::visit_block(type,
                             [&]<typename Block>() { scalar::decode_row<Block>(source, destination, n); });
}

}  // namespace sluice::kernels
