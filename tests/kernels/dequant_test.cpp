// Goal: every tensor type decodes to the numbers its format defines. Hand-made blocks carry values worked out
// on paper; the optional data holds rows made and decoded by ggml itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gguf/types.hpp"
#include "kernels/quant.hpp"
#include "kernels/scalar/iq_tables.hpp"
#include "support/random_blocks.hpp"
#include "support/test_data.hpp"

namespace sluice::kernels {
namespace {

/// A block of zero bytes to be filled in by offset.
struct Bytes {
  explicit Bytes(std::size_t n) : data(n) {}
  Bytes& half(std::size_t at, std::uint16_t bits) {
    data[at] = static_cast<std::uint8_t>(bits & 0xff);
    data[at + 1] = static_cast<std::uint8_t>(bits >> 8);
    return *this;
  }
  Bytes& word(std::size_t at, std::uint32_t bits) {
    for (std::size_t b = 0; b < 4; ++b) data[at + b] = static_cast<std::uint8_t>(bits >> 8 * b);
    return *this;
  }
  Bytes& byte(std::size_t at, int value) {
    data[at] = static_cast<std::uint8_t>(value);
    return *this;
  }
  Bytes& fill(std::size_t at, std::size_t n, int value) {
    std::memset(data.data() + at, value, n);
    return *this;
  }
  std::vector<std::uint8_t> data;
};

std::vector<float> decode(TensorType type, const Bytes& block) {
  const gguf::TypeTraits& traits = gguf::type_traits(type);
  EXPECT_EQ(block.data.size() % traits.block_bytes, 0u);
  std::vector<float> values(block.data.size() / traits.block_bytes * traits.block_elements, -12345.0f);
  EXPECT_TRUE(dequantize_row(type, block.data.data(), values.data(), values.size()));
  return values;
}

TEST(Dequant, PlainElements) {
  EXPECT_THAT(decode(TensorType::f32, Bytes(8).word(0, 0x3fc00000).word(4, 0xc0000000)),
              testing::ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(decode(TensorType::f16, Bytes(4).half(0, 0x3800).half(2, 0xbc00)),
              testing::ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(decode(TensorType::bf16, Bytes(4).half(0, 0x3f80).half(2, 0xc040)),
              testing::ElementsAre(1.0f, -3.0f));
  EXPECT_THAT(decode(TensorType::f64, Bytes(8).word(4, 0xbff80000)), testing::ElementsAre(-1.5f));
}

TEST(Dequant, IntegersConvert) {
  EXPECT_THAT(decode(TensorType::i8, Bytes(2).byte(0, 127).byte(1, 0x80)),
              testing::ElementsAre(127.0f, -128.0f));
  EXPECT_THAT(decode(TensorType::i16, Bytes(2).half(0, 0x8000)), testing::ElementsAre(-32768.0f));
  EXPECT_THAT(decode(TensorType::i32, Bytes(4).word(0, 0xffffffff)), testing::ElementsAre(-1.0f));
  EXPECT_THAT(decode(TensorType::i64, Bytes(8).word(4, 1)), testing::ElementsAre(0x1p32f));
}

TEST(Dequant, UnknownTypeIsRefused) {
  float value = 7.0f;
  EXPECT_FALSE(dequantize_row(static_cast<TensorType>(77), &value, &value, 1));
  EXPECT_FALSE(dequantize_row(static_cast<TensorType>(4), &value, &value, 1));  // Removed from the format.
  EXPECT_EQ(value, 7.0f);
}

TEST(Dequant, FourAndFiveBitBlocksOf32) {
  // Byte 3 is 0xe2: element 3 has digit 2, element 19 digit 14.
  const auto q4_0 = decode(TensorType::q4_0, Bytes(18).half(0, 0x3800).byte(2 + 3, 0xe2));
  EXPECT_EQ(q4_0[3], 0.5f * (2 - 8));
  EXPECT_EQ(q4_0[19], 0.5f * (14 - 8));
  EXPECT_EQ(q4_0[0], -4.0f);

  const auto q4_1 = decode(TensorType::q4_1, Bytes(20).half(0, 0x3800).half(2, 0xbc00).byte(4 + 3, 0xe2));
  EXPECT_EQ(q4_1[3], 0.5f * 2 - 1);
  EXPECT_EQ(q4_1[19], 0.5f * 14 - 1);
  EXPECT_EQ(q4_1[31], -1.0f);

  const std::uint32_t fifth = 1u << 3 | 1u << 31;
  const auto q5_0 = decode(TensorType::q5_0, Bytes(22).half(0, 0x4000).word(2, fifth).byte(6 + 3, 0xe2));
  EXPECT_EQ(q5_0[3], 2.0f * (16 + 2 - 16));
  EXPECT_EQ(q5_0[19], 2.0f * (14 - 16));
  EXPECT_EQ(q5_0[31], 0.0f);
  EXPECT_EQ(q5_0[30], -32.0f);

  const auto q5_1 =
      decode(TensorType::q5_1, Bytes(24).half(0, 0x4000).half(2, 0x3800).word(4, fifth).byte(8 + 3, 0xe2));
  EXPECT_EQ(q5_1[3], 2.0f * 18 + 0.5f);
  EXPECT_EQ(q5_1[19], 2.0f * 14 + 0.5f);
  EXPECT_EQ(q5_1[31], 2.0f * 16 + 0.5f);
}

TEST(Dequant, EightBitBlocks) {
  const auto q8_0 = decode(TensorType::q8_0, Bytes(34).half(0, 0x3800).byte(2, 0x80).byte(2 + 31, 127));
  EXPECT_EQ(q8_0[0], -64.0f);
  EXPECT_EQ(q8_0[31], 63.5f);
  const auto q8_1 = decode(TensorType::q8_1, Bytes(36).half(0, 0x3800).half(2, 0x7bff).byte(4 + 1, 0xff));
  EXPECT_EQ(q8_1[1], -0.5f);
  const auto q8_k = decode(TensorType::q8_k, Bytes(292).word(0, 0x3e800000).byte(4 + 255, 100));
  EXPECT_EQ(q8_k[255], 25.0f);
}

TEST(Dequant, NonLinearFourBit) {
  const auto iq4_nl = decode(TensorType::iq4_nl, Bytes(18).half(0, 0x3800).byte(2, 0xf0).byte(3, 0x87));
  EXPECT_EQ(iq4_nl[0], -63.5f);
  EXPECT_EQ(iq4_nl[16], 56.5f);
  EXPECT_EQ(iq4_nl[1], -5.0f);
  EXPECT_EQ(iq4_nl[17], 0.5f);

  // Group 1: low nibble 5 from the high half of scales_l[0], top pair 2 from bits 2-3 of scales_h: 37 - 32
  // = 5.
  const auto iq4_xs = decode(TensorType::iq4_xs,
                             Bytes(136).half(0, 0x3c00).half(2, 2u << 2).byte(4, 0x50).byte(8 + 16, 0xf0));
  EXPECT_EQ(iq4_xs[32], 5.0f * -127);
  EXPECT_EQ(iq4_xs[48], 5.0f * 113);
  EXPECT_EQ(iq4_xs[0], -32.0f * -127);
}

TEST(Dequant, MicroscalingFloats) {
  // 2^(127 - 128) = 1/2 times the doubled table {0, 1, 2, 3, 4, 6, 8, 12} is E2M1's {0, 0.5, ... 6}.
  const auto mxfp4 = decode(TensorType::mxfp4, Bytes(17).byte(0, 127).byte(1, 0x97).byte(2, 0x8f));
  EXPECT_EQ(mxfp4[0], 6.0f);
  EXPECT_EQ(mxfp4[16], -0.5f);
  EXPECT_EQ(mxfp4[1], -6.0f);
  EXPECT_EQ(mxfp4[17], 0.0f);
  EXPECT_EQ(decode(TensorType::mxfp4, Bytes(17).byte(0, 0).byte(1, 0x01))[0], 0x1p-128f);
  EXPECT_EQ(decode(TensorType::mxfp4, Bytes(17).byte(0, 1).byte(1, 0x01))[0], 0x1p-127f);
  EXPECT_EQ(decode(TensorType::mxfp4, Bytes(17).byte(0, 2).byte(1, 0x01))[0], 0x1p-126f);

  // Scales: 0x38 is 1, 0x41 is 2.25, 0x04 the subnormal 4 * 2^-9, 0x7f NaN (counts as 0).
  const auto nvfp4 = decode(
      TensorType::nvfp4, Bytes(36).byte(0, 0x38).byte(1, 0x41).byte(2, 0x04).byte(3, 0x7f).fill(4, 32, 0xe7));
  EXPECT_EQ(nvfp4[0], 6.0f);
  EXPECT_EQ(nvfp4[8], -4.0f);
  EXPECT_EQ(nvfp4[16], 6.0f * 2.25f);
  EXPECT_EQ(nvfp4[32], 6.0f * 0x1p-7f);
  EXPECT_EQ(nvfp4[48], 0.0f);
}

TEST(Dequant, OneAndTwoBitsWithOneScale) {
  // Byte 9 holds elements 72-79, bit 3 is element 75.
  const auto q1 = decode(TensorType::q1_0, Bytes(18).half(0, 0x3800).byte(2 + 9, 1 << 3));
  EXPECT_EQ(q1[75], 0.5f);
  EXPECT_EQ(q1[74], -0.5f);
  EXPECT_EQ(q1[127], -0.5f);

  // Byte 9 holds elements 36-39: 0, 1, 2 and 3 stand for -1, 0, 1 and 2.
  const auto q2 = decode(TensorType::q2_0, Bytes(18).half(0, 0x4000).byte(2 + 9, 0xe4));
  EXPECT_THAT(std::vector<float>(q2.begin() + 36, q2.begin() + 41),
              testing::ElementsAre(-2.0f, 0.0f, 2.0f, 4.0f, -2.0f));
  const auto g128 = decode(TensorType::q2_0_g128, Bytes(34).half(0, 0x4000).byte(2 + 31, 0xe4));
  EXPECT_THAT(std::vector<float>(g128.begin() + 123, g128.end()),
              testing::ElementsAre(-2.0f, -2.0f, 0.0f, 2.0f, 4.0f));
}

TEST(Dequant, Q2KScalesAndMinimumsPer16) {
  // Sub-block 9 (elements 144-159): scale 3, min 5. Element 145 is byte 32 + 17, bit pair 0.
  const auto values = decode(
      TensorType::q2_k, Bytes(84).byte(9, 0x53).byte(16 + 32 + 17, 0x02).half(80, 0x3800).half(82, 0x3c00));
  EXPECT_EQ(values[145], 0.5f * 3 * 2 - 5);
  EXPECT_EQ(values[144], -5.0f);
  EXPECT_EQ(values[143], 0.0f);
  EXPECT_EQ(decode(TensorType::q2_k, Bytes(84).byte(7, 0x01).byte(16 + 16, 0xc0).half(80, 0x3c00))[112],
            3.0f);
}

TEST(Dequant, Q3KSignedScalesAndInvertedMask) {
  // Sub-block 6: low nibble 7, high pair 2 (byte 8 + 2, bits 2-3): 39 - 32 = 7. Element 97: group 3, byte 1.
  const Bytes block =
      Bytes(110).byte(1, 1 << 3).byte(32 + 1, 2 << 6).byte(96 + 6, 7).byte(96 + 10, 2 << 2).half(108, 0x3800);
  const auto values = decode(TensorType::q3_k, block);
  EXPECT_EQ(values[97], 0.5f * 7 * 2);
  EXPECT_EQ(values[98], 0.5f * 7 * -4);
  EXPECT_EQ(values[0], 0.5f * -32 * -4);
}

TEST(Dequant, Q4KAndQ5KSixBitScales) {
  // Group 5: scale 0x2b (nibble b of byte 9, top pair 2 of byte 1), min 0x17 (nibble 7, top pair 1 of byte
  // 5).
  const auto scales = [](Bytes block) {
    return block.byte(4 + 9, 0x7b).byte(4 + 1, 2 << 6).byte(4 + 5, 1 << 6);
  };
  // Element 165 = 64 * 2 + 32 + 5: high nibble of byte 64 + 5.
  const auto q4 =
      decode(TensorType::q4_k, scales(Bytes(144).half(0, 0x3c00).half(2, 0x3800)).byte(16 + 69, 0x90));
  EXPECT_EQ(q4[165], 43.0f * 9 - 0.5f * 23);
  EXPECT_EQ(q4[166], -11.5f);
  EXPECT_EQ(q4[133], 0.0f);

  const auto q5 =
      decode(TensorType::q5_k,
             scales(Bytes(176).half(0, 0x3c00).half(2, 0x3800)).byte(16 + 5, 1 << 5).byte(48 + 69, 0x90));
  EXPECT_EQ(q5[165], 43.0f * 25 - 0.5f * 23);
  EXPECT_EQ(q5[166], -11.5f);

  // Group 2 lies among the first four: six bits of bytes 2 and 6.
  EXPECT_EQ(decode(TensorType::q4_k, Bytes(144)
                                         .half(0, 0x3c00)
                                         .half(2, 0x3c00)
                                         .byte(4 + 2, 0x3f)
                                         .byte(4 + 6, 0x3e)
                                         .byte(16 + 32, 0x0f))[64],
            63.0f * 15 - 62);
}

TEST(Dequant, Q6KPartsOfAHalf) {
  // Element 128 + 70 (part 2): high nibble of ql[64 + 6], pair 2 of qh[32 + 6]; sub-block 12 has scale -3.
  const auto values =
      decode(TensorType::q6_k,
             Bytes(210).byte(64 + 6, 0xa0).byte(128 + 32 + 6, 3 << 4).byte(192 + 12, -3).half(208, 0x3800));
  EXPECT_EQ(values[198], 0.5f * -3 * (0x3a - 32));
  EXPECT_EQ(values[199], 0.5f * -3 * -32);
  // Part 1 of the first half: low nibble of ql[32 + 0], pair 1 of qh[0].
  EXPECT_EQ(decode(TensorType::q6_k,
                   Bytes(210).byte(32, 0x05).byte(128, 1 << 2).byte(192 + 2, 1).half(208, 0x3c00))[32],
            0x15 - 32.0f);
}

/// FNV-1a over the bytes of a codebook, in order.
template <typename Grid>
std::uint64_t checksum(const Grid& grid) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& point : grid) {
    for (const auto value : point) hash = (hash ^ static_cast<std::uint8_t>(value)) * 0x100000001b3u;
  }
  return hash;
}

/// The sums were taken over ggml's own tables, not over ours: a file's index must mean the same point.
TEST(Codebooks, AreThoseOfTheFormat) {
  EXPECT_EQ(checksum(scalar::k_iq2_xxs_grid), 0xbb4ee025b5ac6e8eu);
  EXPECT_EQ(checksum(scalar::k_iq2_xs_grid), 0xc9b1ee61e79909bdu);
  EXPECT_EQ(checksum(scalar::k_iq2_s_grid), 0x123edd38a3b62b90u);
  EXPECT_EQ(checksum(scalar::k_iq1_grid), 0x6703ed863501ae2eu);
  EXPECT_EQ(checksum(scalar::k_iq3_xxs_grid), 0xdfa5dc83d6a155d5u);
  EXPECT_EQ(checksum(scalar::k_iq3_s_grid), 0xfa37020c25b44829u);
}

TEST(Codebooks, SignCodesHaveAnEvenNumberOfMinuses) {
  for (std::uint32_t code = 0; code < 128; ++code) {
    EXPECT_EQ(std::popcount(scalar::expand_signs(code)) % 2, 0);
    EXPECT_EQ(scalar::expand_signs(code) & 0x7fu, code);
    EXPECT_EQ(scalar::expand_signs(code | 0xffffff80u),
              scalar::expand_signs(code));  // Higher bits are others'.
  }
}

TEST(Dequant, TwoBitGrids) {
  // Point 1 of every 2-bit grid is (43, 8, 8, ...). Scale nibble 3: (0.5 + 3) / 4 = 0.875.
  // Sign code 0x05 has two bits, so the eighth sign stays clear; 0x01 sets it by parity.
  const auto xxs = decode(TensorType::iq2_xxs, Bytes(66).half(0, 0x3c00).byte(2 + 8, 1).byte(2 + 9, 1).word(
                                                   2 + 12, 3u << 28 | 1u << 7 | 0x05));
  EXPECT_EQ(xxs[32], -43 * 0.875f);
  EXPECT_EQ(xxs[33], 8 * 0.875f);
  EXPECT_EQ(xxs[34], -8 * 0.875f);
  EXPECT_EQ(xxs[39], 8 * 0.875f);
  EXPECT_EQ(xxs[40], -43 * 0.875f);
  EXPECT_EQ(xxs[47], -8 * 0.875f);
  EXPECT_EQ(xxs[0], 8 * 0.125f);

  // Point 511 of IQ2_XS is all 43. Point word 7 (elements 56-63): sixteenth 3, the high nibble of scales[1].
  const auto xs =
      decode(TensorType::iq2_xs, Bytes(74).half(0, 0x3c00).half(2 + 14, 0x01 << 9 | 511).byte(66 + 1, 0x30));
  EXPECT_EQ(xs[56], -43 * 0.875f);
  EXPECT_EQ(xs[57], 43 * 0.875f);
  EXPECT_EQ(xs[63], -43 * 0.875f);

  // Point 1023 of IQ2_S is all 43; its signs are explicit. Point 5: qh byte 1, pair 1; sixteenth 2.
  const auto s = decode(
      TensorType::iq2_s,
      Bytes(82).half(0, 0x3c00).byte(2 + 5, 0xff).byte(34 + 5, 0x01).byte(66 + 1, 3 << 2).byte(74 + 1, 0x03));
  EXPECT_EQ(s[40], -43 * 0.875f);
  EXPECT_EQ(s[47], 43 * 0.875f);
}

TEST(Dequant, ThreeBitGrids) {
  // Point 1 of IQ3_XXS is (20, 4, 4, 4). Scale nibble 3: 3.5 / 2 = 1.75. The sign code of
  // elements 40-47 is 0x01: the first is negative and, by parity, the last.
  const auto xxs = decode(TensorType::iq3_xxs,
                          Bytes(98).half(0, 0x3c00).byte(2 + 8 + 2, 1).word(66 + 4, 3u << 28 | 0x01u << 7));
  EXPECT_EQ(xxs[32 + 8], -20 * 1.75f);
  EXPECT_EQ(xxs[32 + 9], 4 * 1.75f);
  EXPECT_EQ(xxs[32 + 15], -4 * 1.75f);

  // Point 511 of IQ3_S is (1, 1, 15, 15). Point 9 has bit 1 of qh[1] as its index top and signs in signs[4].
  const auto s = decode(
      TensorType::iq3_s,
      Bytes(110).half(0, 0x3c00).byte(2 + 9, 0xff).byte(66 + 1, 1 << 1).byte(74 + 4, 0x20).byte(106, 0x30));
  EXPECT_EQ(s[36], 7 * 1.0f);
  EXPECT_EQ(s[37], 7 * -1.0f);
  EXPECT_EQ(s[38], 7 * 15.0f);
  EXPECT_EQ(s[39], 7 * 15.0f);
}

TEST(Dequant, OneBitGrids) {
  // Point 2047 is all +1, point 0 all -1. Scale digit 2: 2 * 2 + 1 = 5. delta = -1/8 where bit 15 (bit 3) is
  // set.
  const auto s =
      decode(TensorType::iq1_s,
             Bytes(50).half(0, 0x3c00).byte(2 + 5, 0xff).half(34 + 2, 0x8000 | 2u << 12 | 7u << 3));
  EXPECT_EQ(s[40], 5 * 0.875f);
  EXPECT_EQ(s[32], 5 * -1.125f);
  EXPECT_EQ(s[0], -0.875f);

  // d = 0x3c00 spread over the top nibbles: 0, 0, c, 3. Point 5 is sixteenth 2: bits 6-8 of the first word.
  const auto m =
      decode(TensorType::iq1_m,
             Bytes(56).byte(5, 0xff).byte(32 + 2, 0xf0).half(48, 2u << 6).half(52, 0xc000).half(54, 0x3000));
  EXPECT_EQ(m[40], 5 * 0.875f);
  EXPECT_EQ(m[32], 5 * -0.875f);
  EXPECT_EQ(m[0], -0.875f);
}

TEST(Dequant, TernaryDigits) {
  // 256 * (2 * 81 + 0 * 27 + 1 * 9 + 2 * 3 + 0) / 243, rounded up, is 187: digits 2, 0, 1, 2, 0.
  const auto tq1 =
      decode(TensorType::tq1_0, Bytes(54).byte(1, 187).byte(32 + 1, 187).byte(48 + 1, 187).half(52, 0x4000));
  for (const auto& [first, step] : {std::pair<std::size_t, std::size_t>{1, 32}, {161, 16}}) {
    EXPECT_EQ(tq1[first], 2.0f);
    EXPECT_EQ(tq1[first + step], -2.0f);
    EXPECT_EQ(tq1[first + 2 * step], 0.0f);
    EXPECT_EQ(tq1[first + 3 * step], 2.0f);
    EXPECT_EQ(tq1[first + 4 * step], -2.0f);
  }
  EXPECT_EQ(tq1[241], 2.0f);
  EXPECT_EQ(tq1[253], 2.0f);

  const auto tq2 = decode(TensorType::tq2_0, Bytes(66).byte(32 + 3, 2 << 4).half(64, 0x3800));
  EXPECT_EQ(tq2[128 + 64 + 3], 0.5f);
  EXPECT_EQ(tq2[128 + 3], -0.5f);
}

TEST(Dequant, WorksAtAnyAddress) {
  for (const TensorType type :
       {TensorType::f32, TensorType::q4_k, TensorType::q5_0, TensorType::iq2_xs, TensorType::iq1_m}) {
    const std::vector<std::byte> row = test::random_rows(type, 1, 512, 3);
    std::vector<float> expected(512), actual(512);
    ASSERT_TRUE(dequantize_row(type, row.data(), expected.data(), 512));
    for (std::size_t shift = 1; shift < 4; ++shift) {
      std::vector<std::byte> moved(row.size() + shift);
      std::memcpy(moved.data() + shift, row.data(), row.size());
      ASSERT_TRUE(dequantize_row(type, moved.data() + shift, actual.data(), 512));
      EXPECT_EQ(std::memcmp(expected.data(), actual.data(), 512 * sizeof(float)), 0) << gguf::type_name(type);
    }
  }
}

TEST(Dequant, RandomBlocksOfEveryTypeAreFinite) {
  for (const gguf::TypeTraits& traits : gguf::all_types()) {
    if (traits.use == gguf::TypeUse::number) continue;
    const std::vector<std::byte> rows = test::random_rows(traits.type, 2, 512, 11);
    ASSERT_EQ(rows.size(), 2 * gguf::row_bytes(traits.type, 512)) << traits.name;
    std::vector<float> values(1024);
    ASSERT_TRUE(dequantize_row(traits.type, rows.data(), values.data(), values.size())) << traits.name;
    bool all_finite = true;
    bool any_nonzero = false;
    for (const float value : values) {
      all_finite = all_finite && std::isfinite(value);
      any_nonzero = any_nonzero || value != 0.0f;
    }
    EXPECT_TRUE(all_finite) << traits.name;
    EXPECT_TRUE(any_nonzero) << traits.name;
  }
}

/// All formats here need one rounding order only (each value is a product, or a product and a sum, of the
/// same factors in the same order), so the comparison is on bits.
TEST(Dequant, EqualsGgmlBitForBit) {
  SLUICE_NEEDS_DATA(index, "quant/INDEX.tsv");
  std::istringstream lines(test::read_text(index));
  std::string line;
  std::getline(lines, line);
  int n_types = 0;
  while (std::getline(lines, line)) {
    const std::size_t tab = line.find('\t');
    const std::string id = line.substr(0, tab);
    const std::string name = line.substr(tab + 1, line.find('\t', tab + 1) - tab - 1);
    const auto type = static_cast<TensorType>(std::stoul(id));
    const std::string stem = (id.size() < 2 ? "0" + id : id) + "_" + name;
    const std::vector<std::byte> rows = test::read_bytes(index.parent_path() / (stem + ".bin"));
    const std::vector<std::byte> expected = test::read_bytes(index.parent_path() / (stem + ".deq.f32"));
    std::vector<float> values(expected.size() / sizeof(float));
    ASSERT_EQ(rows.size(), gguf::row_bytes(type, values.size())) << stem;
    ASSERT_TRUE(dequantize_row(type, rows.data(), values.data(), values.size())) << stem;
    std::size_t n_different = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::memcmp(&values[i], expected.data() + i * sizeof(float), sizeof(float)) != 0) ++n_different;
    }
    EXPECT_EQ(n_different, 0u) << stem;
    ++n_types;
  }
  EXPECT_EQ(n_types, 24);
}

}  // namespace
}  // namespace sluice::kernels
