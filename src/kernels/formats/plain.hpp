#pragma once

// Elements that are plain numbers: blocks of one element.

#ifndef SLUICE_VECTOR_FORMATS

#include "kernels/scalar/decode.hpp"

namespace sluice::kernels::scalar {

struct BlockF32 {
  static constexpr std::size_t k_elements = 1;
  Le32 bits;
};

struct BlockF16 {
  static constexpr std::size_t k_elements = 1;
  Half value;
};

struct BlockBf16 {
  static constexpr std::size_t k_elements = 1;
  Le16 bits;
};

struct BlockF64 {
  static constexpr std::size_t k_elements = 1;
  Le64 bits;
};

struct BlockI8 {
  static constexpr std::size_t k_elements = 1;
  std::int8_t value;
};

struct BlockI16 {
  static constexpr std::size_t k_elements = 1;
  Le16 bits;
};

struct BlockI32 {
  static constexpr std::size_t k_elements = 1;
  Le32 bits;
};

struct BlockI64 {
  static constexpr std::size_t k_elements = 1;
  Le64 bits;
};

inline void decode(const BlockF32& block, float* out) noexcept {
  *out = std::bit_cast<float>(std::uint32_t{block.bits});
}

inline void decode(const BlockF16& block, float* out) noexcept {
  *out = block.value.value();
}

inline void decode(const BlockBf16& block, float* out) noexcept {
  *out = bf16_to_f32(block.bits);
}

inline void decode(const BlockF64& block, float* out) noexcept {
  *out = static_cast<float>(std::bit_cast<double>(std::uint64_t{block.bits}));
}

inline void decode(const BlockI8& block, float* out) noexcept {
  *out = block.value;
}

inline void decode(const BlockI16& block, float* out) noexcept {
  *out = static_cast<std::int16_t>(std::uint16_t{block.bits});
}

inline void decode(const BlockI32& block, float* out) noexcept {
  *out = static_cast<float>(static_cast<std::int32_t>(std::uint32_t{block.bits}));
}

inline void decode(const BlockI64& block, float* out) noexcept {
  *out = static_cast<float>(static_cast<std::int64_t>(std::uint64_t{block.bits}));
}

}  // namespace sluice::kernels::scalar

#else

namespace sluice::kernels::simd {
namespace {

struct F32 {
  static constexpr std::size_t k_bytes = 4;
  static SLUICE_INLINE Floats load_lanes(const std::uint8_t* p) noexcept {
    return loadf(reinterpret_cast<const float*>(p));
  }
};

struct F16 {
  static constexpr std::size_t k_bytes = 2;
  static SLUICE_INLINE Floats load_lanes(const std::uint8_t* p) noexcept { return load_f16(p); }
};

struct Bf16 {
  static constexpr std::size_t k_bytes = 2;
  static SLUICE_INLINE Floats load_lanes(const std::uint8_t* p) noexcept { return load_bf16(p); }
};

}  // namespace
}  // namespace sluice::kernels::simd

#endif
