#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "kernels/scalar/words.hpp"

// From blocks to numbers. A format with a partner in 8-bit activations has unpack() (integers and their
// scales, from which both decoding and integer dot products follow); the others have decode() straight to
// floats. Each is in the format's header (kernels/formats), which includes this one.
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

/// One of several equal parts of a block, of 16 or 32 elements: w = scale * q.
template <std::size_t Elements>
struct UnpackedPart {
  std::int8_t q[Elements];
  float scale = 0.0f;
};

template <typename Block>
concept UnpacksTo32 = requires(const Block& block, Unpacked32& out) {
  unpack(block, out);
};
template <typename Block>
concept UnpacksTo256 = requires(const Block& block, Unpacked256& out) {
  unpack(block, out);
};
/// unpack(block, i, part) gives the i-th k_part_elements.
template <typename Block>
concept UnpacksToParts = requires(const Block& block, UnpackedPart<Block::k_part_elements>& part) {
  unpack(block, std::size_t{0}, part);
};

/// The floats of an unpacked block.
void finish(const Unpacked32& block, float* out) noexcept;
void finish(const Unpacked256& block, float* out) noexcept;

// decode() writes Block::k_elements floats.
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
template <UnpacksToParts Block>
void decode(const Block& block, float* out) noexcept {
  for (std::size_t i = 0; i < Block::k_elements / Block::k_part_elements; ++i) {
    UnpackedPart<Block::k_part_elements> part;
    unpack(block, i, part);
    for (const std::int8_t q : part.q) *out++ = part.scale * static_cast<float>(q);
  }
}

// --- What several formats use

/// The nibbles of 16 bytes as 32 digits: low ones are elements 0-15, high ones 16-31.
inline void split_nibbles(const std::uint8_t (&qs)[16], std::uint8_t* digits) noexcept {
  for (std::size_t j = 0; j < 16; ++j) {
    digits[j] = qs[j] & 0xf;
    digits[j + 16] = qs[j] >> 4;
  }
}

inline void unpack_nibbles(const std::uint8_t (&qs)[16], std::uint32_t fifth_bits, int zero,
                           std::int8_t* q) noexcept {
  std::uint8_t digits[32];
  split_nibbles(qs, digits);
  for (std::size_t j = 0; j < 32; ++j) {
    const int digit = digits[j] | static_cast<int>(fifth_bits >> j & 1u) << 4;
    q[j] = static_cast<std::int8_t>(digit - zero);
  }
}

inline void look_up_nibbles(const std::uint8_t (&qs)[16], const std::array<std::int8_t, 16>& values,
                            std::int8_t* q) noexcept {
  std::uint8_t digits[32];
  split_nibbles(qs, digits);
  for (std::size_t j = 0; j < 32; ++j) q[j] = values[digits[j]];
}

/// 0.5 + digit, doubled to be an integer.
inline std::int8_t odd_scale(unsigned digit) noexcept {
  return static_cast<std::int8_t>(2 * digit + 1);
}

/// One grid point, negative where the bit of `signs` is set.
template <typename Point>
inline void put_point(const Point& point, unsigned signs, std::int8_t* out) noexcept {
  for (std::size_t e = 0; e < point.size(); ++e) {
    out[e] = static_cast<std::int8_t>((signs >> e & 1u) != 0 ? -point[e] : point[e]);
  }
}

}  // namespace sluice::kernels::scalar
