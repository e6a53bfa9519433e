#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "gguf/types.hpp"
#include "kernels/quant.hpp"

// The block layouts of GGUF's tensor types, as ggml defines them (ggml-common.h of ggml-org/ggml). All
// members are bytes, so every struct has alignment 1 and its exact file size: a row may lie at any address of
// a read buffer.
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

// --- Unquantized: blocks of one element
// -----------------------------------------------------------------------
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

// --- 32 elements, one scale
// ----------------------------------------------------------------------------------- Four-bit digits: byte j
// holds element j in its low nibble and element j + 16 in its high nibble.

/// w = d * (q - 8)
struct BlockQ4_0 {
  static constexpr std::size_t k_elements = 32;
  Half d;
  std::uint8_t qs[16];
};
/// w = d * q + m
struct BlockQ4_1 {
  static constexpr std::size_t k_elements = 32;
  Half d, m;
  std::uint8_t qs[16];
};
/// w = d * (q - 16); bit j of qh is the fifth bit of element j.
struct BlockQ5_0 {
  static constexpr std::size_t k_elements = 32;
  Half d;
  Le32 qh;
  std::uint8_t qs[16];
};
/// w = d * q + m
struct BlockQ5_1 {
  static constexpr std::size_t k_elements = 32;
  Half d, m;
  Le32 qh;
  std::uint8_t qs[16];
};
/// w = d * q
struct BlockQ8_0 {
  static constexpr std::size_t k_elements = 32;
  Half d;
  std::int8_t qs[32];
};
/// w = d * q; s = d * sum(q), which decoding does not need. An activation format of ggml, seen in no weights.
struct BlockQ8_1 {
  static constexpr std::size_t k_elements = 32;
  Half d, s;
  std::int8_t qs[32];
};
/// w = d * k_iq4_values[q]
struct BlockIq4Nl {
  static constexpr std::size_t k_elements = 32;
  Half d;
  std::uint8_t qs[16];
};
/// OCP microscaling FP4: w = 2^(e - 128) * k_fp4_values[q], the table holding twice the E2M1 value.
struct BlockMxfp4 {
  static constexpr std::size_t k_elements = 32;
  std::uint8_t e;
  std::uint8_t qs[16];
};

/// 64 elements in four sub-blocks of 16: w = ue4m3(d[s]) / 2 * k_fp4_values[q]. Sub-block s owns qs[8s ..
/// 8s+7], low nibbles first.
struct BlockNvfp4 {
  static constexpr std::size_t k_elements = 64;
  std::uint8_t d[4];
  std::uint8_t qs[32];
};

// --- K-quants: 256 elements in sub-blocks with integer scales
// -------------------------------------------------

/// w = (d * scale) * q - (dmin * min), per 16: scale in the low nibble of scales[s], min in the high one.
/// Each half of 128 elements owns 32 bytes of qs; element 32 p + l of it is bit pair p of byte l.
struct BlockQ2K {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t scales[16];
  std::uint8_t qs[64];
  Half d, dmin;
};
/// w = d * (scale - 32) * q, per 16; q = low bit pair (as Q2_K) - 4 unless the mask bit is set: element 32 g
/// + l of the block has bit g of hmask[l]. The 6-bit scales: low nibbles in bytes 0-7, high bit pairs in
/// bytes 8-11.
struct BlockQ3K {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t hmask[32];
  std::uint8_t qs[64];
  std::uint8_t scales[12];
  Half d;
};
/// w = (d * scale) * q - (dmin * min), per 32; 6-bit scales and mins packed in 12 bytes (unpack_scales_6bit).
/// Each 64 elements own 32 bytes of qs: low nibbles first.
struct BlockQ4K {
  static constexpr std::size_t k_elements = 256;
  Half d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qs[128];
};
/// As Q4_K, with bit g of qh[l] as the fifth bit of element 32 g + l.
struct BlockQ5K {
  static constexpr std::size_t k_elements = 256;
  Half d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qh[32];
  std::uint8_t qs[128];
};
/// w = d * scale * (q - 32), per 16. Each half of 128 owns 64 bytes of ql and 32 of qh; its element 32 p + l
/// has nibble p / 2 of ql[32 (p % 2) + l] and bit pair p of qh[l].
struct BlockQ6K {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t ql[128];
  std::uint8_t qh[64];
  std::int8_t scales[16];
  Half d;
};
/// w = d * q. An activation format of ggml; bsums are sums of 16 quants, which decoding does not need.
struct BlockQ8K {
  static constexpr std::size_t k_elements = 256;
  Le32 d;
  std::int8_t qs[256];
  Le16 bsums[16];
};
/// w = d * (scale - 32) * k_iq4_values[q], per 32: low nibbles of the scales in scales_l, high pairs in
/// scales_h. Each 32 elements own 16 bytes of qs, low nibbles first.
struct BlockIq4Xs {
  static constexpr std::size_t k_elements = 256;
  Half d;
  Le16 scales_h;
  std::uint8_t scales_l[4];
  std::uint8_t qs[128];
};

// --- Grid formats: eight or four elements are one point of a codebook (iq_tables.hpp)
// -------------------------

/// w = d * (0.5 + scale) / 4 * grid * sign, per 32: four index bytes, then a word of four 7-bit sign codes
/// and the scale in the top nibble.
struct BlockIq2Xxs {
  static constexpr std::size_t k_elements = 256;
  struct Group {
    std::uint8_t index[4];
    Le32 signs_scale;
  };
  Half d;
  Group groups[8];
};
/// Same value; a word per 8 elements: 9 bits of index, 7 of sign code. A scale nibble per 16.
struct BlockIq2Xs {
  static constexpr std::size_t k_elements = 256;
  Half d;
  Le16 qs[32];
  std::uint8_t scales[8];
};
/// Same value; 10 bits of index (qs and a bit pair of qh), 8 explicit sign bits. A scale nibble per 16.
struct BlockIq2S {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[32];
  std::uint8_t signs[32];
  std::uint8_t qh[8];
  std::uint8_t scales[8];
};
/// w = d * (0.5 + scale) / 2 * grid * sign; an index byte per 4 elements; sign and scale words as in IQ2_XXS.
struct BlockIq3Xxs {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[64];
  Le32 signs_scale[8];
};
/// w = d * (1 + 2 scale) * grid * sign; 9 bits of index per 4 elements (qs and a bit of qh), explicit sign
/// bits, a scale nibble per 32.
struct BlockIq3S {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[64];
  std::uint8_t qh[8];
  std::uint8_t signs[32];
  std::uint8_t scales[4];
};
/// w = d * (2 scale + 1) * (grid + delta), delta = +-1/8. qh, a word per 32 elements: four 3-bit index tops,
/// the scale in bits 12-14, the sign of delta in bit 15.
struct BlockIq1S {
  static constexpr std::size_t k_elements = 256;
  Half d;
  std::uint8_t qs[32];
  Le16 qh[8];
};
/// Same value; a nibble of qh per 8 elements: index top and, in bit 3, the sign of delta. scales: four words,
/// each with four 3-bit scales (per 16 elements) and, in its top nibble, a quarter of the half d (lowest
/// first).
struct BlockIq1M {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t qs[32];
  std::uint8_t qh[16];
  Le16 scales[4];
};

// --- Ternary: w = d * (q - 1)
// ---------------------------------------------------------------------------------

/// Five base-3 digits a byte, stored as a fraction of 256 rounded up, so that the n-th digit is the whole
/// part of 3 times the fraction left after multiplying by 3^n. qs[0..31] hold elements 0-159 (digit n of byte
/// m is element 32 n + m), qs[32..47] elements 160-239 (160 + 16 n + m), qh elements 240-255 (240 + 4 n + m,
/// four digits).
struct BlockTq1_0 {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t qs[48];
  std::uint8_t qh[4];
  Half d;
};
/// Bit pairs, ordered as in Q2_K.
struct BlockTq2_0 {
  static constexpr std::size_t k_elements = 256;
  std::uint8_t qs[64];
  Half d;
};

template <typename Block>
constexpr bool has_file_size(std::size_t bytes) noexcept {
  return sizeof(Block) == bytes && alignof(Block) == 1;
}
static_assert(has_file_size<BlockF32>(4) && has_file_size<BlockF16>(2) && has_file_size<BlockBf16>(2));
static_assert(has_file_size<BlockF64>(8) && has_file_size<BlockI8>(1) && has_file_size<BlockI16>(2));
static_assert(has_file_size<BlockI32>(4) && has_file_size<BlockI64>(8));
static_assert(has_file_size<BlockQ4_0>(18) && has_file_size<BlockQ4_1>(20));
static_assert(has_file_size<BlockQ5_0>(22) && has_file_size<BlockQ5_1>(24));
static_assert(has_file_size<BlockQ8_0>(34) && has_file_size<BlockQ8_1>(36));
static_assert(has_file_size<BlockIq4Nl>(18) && has_file_size<BlockMxfp4>(17) &&
              has_file_size<BlockNvfp4>(36));
static_assert(has_file_size<BlockQ2K>(84) && has_file_size<BlockQ3K>(110) && has_file_size<BlockQ4K>(144));
static_assert(has_file_size<BlockQ5K>(176) && has_file_size<BlockQ6K>(210) && has_file_size<BlockQ8K>(292));
static_assert(has_file_size<BlockIq4Xs>(136));
static_assert(has_file_size<BlockIq2Xxs>(66) && has_file_size<BlockIq2Xs>(74) &&
              has_file_size<BlockIq2S>(82));
static_assert(has_file_size<BlockIq3Xxs>(98) && has_file_size<BlockIq3S>(110));
static_assert(has_file_size<BlockIq1S>(50) && has_file_size<BlockIq1M>(56));
static_assert(has_file_size<BlockTq1_0>(54) && has_file_size<BlockTq2_0>(66));

/// A type of the file format and the struct of its blocks.
template <TensorType Type, typename Struct>
struct TypeBlock {
  static constexpr TensorType k_type = Type;
  using Block = Struct;
};

template <typename... Entries>
struct TypeBlocks {
  template <typename Visitor>
  static constexpr bool visit(TensorType type, Visitor&& visitor) {
    const auto call = [&visitor]<typename Block>() {
      visitor.template operator()<Block>();
      return true;
    };
    return ((type == Entries::k_type && call.template operator()<typename Entries::Block>()) || ...);
  }
};

// clang-format off
using AllTypeBlocks = TypeBlocks<
    TypeBlock<TensorType::f32, BlockF32>,
    TypeBlock<TensorType::f16, BlockF16>,
    TypeBlock<TensorType::bf16, BlockBf16>,
    TypeBlock<TensorType::f64, BlockF64>,
    TypeBlock<TensorType::i8, BlockI8>,
    TypeBlock<TensorType::i16, BlockI16>,
    TypeBlock<TensorType::i32, BlockI32>,
    TypeBlock<TensorType::i64, BlockI64>,
    TypeBlock<TensorType::q4_0, BlockQ4_0>,
    TypeBlock<TensorType::q4_1, BlockQ4_1>,
    TypeBlock<TensorType::q5_0, BlockQ5_0>,
    TypeBlock<TensorType::q5_1, BlockQ5_1>,
    TypeBlock<TensorType::q8_0, BlockQ8_0>,
    TypeBlock<TensorType::q8_1, BlockQ8_1>,
    TypeBlock<TensorType::iq4_nl, BlockIq4Nl>,
    TypeBlock<TensorType::mxfp4, BlockMxfp4>,
    TypeBlock<TensorType::nvfp4, BlockNvfp4>,
    TypeBlock<TensorType::q2_k, BlockQ2K>,
    TypeBlock<TensorType::q3_k, BlockQ3K>,
    TypeBlock<TensorType::q4_k, BlockQ4K>,
    TypeBlock<TensorType::q5_k, BlockQ5K>,
    TypeBlock<TensorType::q6_k, BlockQ6K>,
    TypeBlock<TensorType::q8_k, BlockQ8K>,
    TypeBlock<TensorType::iq4_xs, BlockIq4Xs>,
    TypeBlock<TensorType::iq2_xxs, BlockIq2Xxs>,
    TypeBlock<TensorType::iq2_xs, BlockIq2Xs>,
    TypeBlock<TensorType::iq2_s, BlockIq2S>,
    TypeBlock<TensorType::iq3_xxs, BlockIq3Xxs>,
    TypeBlock<TensorType::iq3_s, BlockIq3S>,
    TypeBlock<TensorType::iq1_s, BlockIq1S>,
    TypeBlock<TensorType::iq1_m, BlockIq1M>,
    TypeBlock<TensorType::tq1_0, BlockTq1_0>,
    TypeBlock<TensorType::tq2_0, BlockTq2_0>>;
// clang-format on

/// Calls visitor.template operator()<Block>() with the block struct of a type and returns true; false when
/// the id names no type.
template <typename Visitor>
constexpr bool visit_block(TensorType type, Visitor&& visitor) {
  return AllTypeBlocks::visit(type, visitor);
}

}  // namespace sluice::kernels::scalar
