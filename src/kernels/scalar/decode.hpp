#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/scalar/blocks.hpp"

// From blocks to numbers. A format with a partner in 8-bit activations has unpack() (integers and their
// scales, from which both decoding and integer dot products follow); the others have decode() straight to
// floats.
namespace sluice::kernels::scalar {

/// A block of 32: w = scale * q + min. Formats without a minimum set it to -0, which changes no bit when
/// added.
struct Unpacked32 {
  std::int8_t q[32];
  float scale = 0.0f;
  float min = -0.0f;
};

/// A block of 256: w = (d * scale[s]) * q - (d_min * min[s]) with s = element / 16.
struct Unpacked256 {
  std::int8_t q[256];
  std::int8_t scale[16];
  std::uint8_t min[16] = {};
  float d = 0.0f;
  float d_min = 0.0f;
};

void unpack(const BlockQ4_0& block, Unpacked32& out) noexcept;
void unpack(const BlockQ4_1& block, Unpacked32& out) noexcept;
void unpack(const BlockQ5_0& block, Unpacked32& out) noexcept;
void unpack(const BlockQ5_1& block, Unpacked32& out) noexcept;
void unpack(const BlockQ8_0& block, Unpacked32& out) noexcept;
void unpack(const BlockIq4Nl& block, Unpacked32& out) noexcept;
void unpack(const BlockMxfp4& block, Unpacked32& out) noexcept;

void unpack(const BlockQ2K& block, Unpacked256& out) noexcept;
void unpack(const BlockQ3K& block, Unpacked256& out) noexcept;
void unpack(const BlockQ4K& block, Unpacked256& out) noexcept;
void unpack(const BlockQ5K& block, Unpacked256& out) noexcept;
void unpack(const BlockQ6K& block, Unpacked256& out) noexcept;
void unpack(const BlockIq4Xs& block, Unpacked256& out) noexcept;
void unpack(const BlockIq2Xxs& block, Unpacked256& out) noexcept;
void unpack(const BlockIq2Xs& block, Unpacked256& out) noexcept;
void unpack(const BlockIq2S& block, Unpacked256& out) noexcept;
void unpack(const BlockIq3Xxs& block, Unpacked256& out) noexcept;
void unpack(const BlockIq3S& block, Unpacked256& out) noexcept;
void unpack(const BlockIq1S& block, Unpacked256& out) noexcept;
void unpack(const BlockIq1M& block, Unpacked256& out) noexcept;
void unpack(const BlockTq1_0& block, Unpacked256& out) noexcept;
void unpack(const BlockTq2_0& block, Unpacked256& out) noexcept;

template <typename Block>
concept UnpacksTo32 = requires(const Block& block, Unpacked32& out) {
  unpack(block, out);
};
template <typename Block>
concept UnpacksTo256 = requires(const Block& block, Unpacked256& out) {
  unpack(block, out);
};

/// Each writes Block::k_elements floats.
void decode(const BlockF32& block, float* out) noexcept;
void decode(const BlockF16& block, float* out) noexcept;
void decode(const BlockBf16& block, float* out) noexcept;
void decode(const BlockF64& block, float* out) noexcept;
void decode(const BlockI8& block, float* out) noexcept;
void decode(const BlockI16& block, float* out) noexcept;
void decode(const BlockI32& block, float* out) noexcept;
void decode(const BlockI64& block, float* out) noexcept;
void decode(const BlockQ8_1& block, float* out) noexcept;
void decode(const BlockQ8K& block, float* out) noexcept;
void decode(const BlockNvfp4& block, float* out) noexcept;

/// The floats of an unpacked block.
void finish(const Unpacked32& block, float* out) noexcept;
void finish(const Unpacked256& block, float* out) noexcept;

template <UnpacksTo32 Block>
void decode(const Block& block, float* out) noexcept {
  Unpacked32 unpacked;
  unpack(block, unpacked);
  finish(unpacked, out);
}
template <UnpacksTo256 Block>
void decode(const Block& block, float* out) noexcept {
  Unpacked256 unpacked;
  unpack(block, unpacked);
  finish(unpacked, out);
}

/// `n` elements (whole blocks) from `source`, at any address.
template <typename Block>
void decode_row(const void* source, float* out, std::size_t n) noexcept {
  const auto* blocks = static_cast<const Block*>(source);
  for (std::size_t b = 0; b < n / Block::k_elements; ++b) decode(blocks[b], out + b * Block::k_elements);
}

}  // namespace sluice::kernels::scalar
