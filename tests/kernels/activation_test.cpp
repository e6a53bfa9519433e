// Goal: activations are quantized as the layout says, within half a step, and bad numbers neither crash nor
// vanish.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/quant.hpp"
#include "support/random_blocks.hpp"

namespace sluice::kernels {
namespace {

constexpr float k_infinity = std::numeric_limits<float>::infinity();
constexpr float k_nan = std::numeric_limits<float>::quiet_NaN();

struct Quantized {
  ActivationFormat format;
  ActivationLayout layout;
  std::vector<std::byte> bytes;
  std::size_t block() const { return format == ActivationFormat::q8_32 ? 32 : 256; }
  std::size_t sum_elements() const { return format == ActivationFormat::q8_32 ? 32 : 16; }
  int q(std::size_t i) const { return static_cast<std::int8_t>(bytes[i]); }
  float d(std::size_t b) const {
    float value;
    std::memcpy(&value, bytes.data() + layout.scale_offset + b * sizeof value, sizeof value);
    return value;
  }
  int sum(std::size_t s) const {
    const std::byte* sums = bytes.data() + layout.sum_offset;
    if (format == ActivationFormat::q8_32) {
      std::int32_t value;
      std::memcpy(&value, sums + s * sizeof value, sizeof value);
      return value;
    }
    std::int16_t value;
    std::memcpy(&value, sums + s * sizeof value, sizeof value);
    return value;
  }
};

Quantized quantize(ActivationFormat format, const std::vector<float>& x) {
  Quantized result{format, activation_layout(format, x.size()), {}};
  result.bytes.resize(result.layout.row_bytes);
  quantize_activation(format, x.data(), x.size(), result.bytes.data());
  return result;
}

class Activation : public testing::TestWithParam<ActivationFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, Activation,
                         testing::Values(ActivationFormat::q8_32, ActivationFormat::q8_256),
                         [](const auto& test) {
                           return test.param == ActivationFormat::q8_32 ? std::string("q8_32")
                                                                        : std::string("q8_256");
                         });

TEST(ActivationLayout, PartsFollowEachOtherPaddedTo64Bytes) {
  const ActivationLayout plain = activation_layout(ActivationFormat::f32, 17);
  EXPECT_EQ(plain.row_bytes, 128u);

  const ActivationLayout one_32 = activation_layout(ActivationFormat::q8_32, 32);
  EXPECT_EQ(one_32.scale_offset, 64u);
  EXPECT_EQ(one_32.sum_offset, 128u);
  EXPECT_EQ(one_32.row_bytes, 192u);

  const ActivationLayout q8_32 = activation_layout(ActivationFormat::q8_32, 2048);
  EXPECT_EQ(q8_32.scale_offset, 2048u);
  EXPECT_EQ(q8_32.sum_offset, 2048u + 64 * 4);
  EXPECT_EQ(q8_32.row_bytes, 2048u + 2 * 64 * 4);

  const ActivationLayout q8_256 = activation_layout(ActivationFormat::q8_256, 2048 + 256);
  EXPECT_EQ(q8_256.scale_offset, 2304u);
  EXPECT_EQ(q8_256.sum_offset, 2304u + 64);
  EXPECT_EQ(q8_256.row_bytes, 2304u + 64 + 320);  // 144 sums of 2 bytes, padded from 288.
}

TEST(ActivationF32, IsACopy) {
  const std::vector<float> x = {1.0f, -0.0f, k_infinity, 0x1p-149f, 5.0f};
  const Quantized row = quantize(ActivationFormat::f32, x);
  EXPECT_EQ(std::memcmp(row.bytes.data(), x.data(), x.size() * sizeof(float)), 0);
}

TEST_P(Activation, ErrorIsAtMostHalfAStep) {
  const std::vector<float> x = test::random_floats(1024, 5);
  const Quantized row = quantize(GetParam(), x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = row.d(i / row.block());
    // The quotient x / d is rounded once to float (24 bits, |q| < 128) before it is rounded to an integer.
    EXPECT_LE(std::abs(x[i] - d * row.q(i)), d * (0.5 + 128 * 0x1p-24)) << "element " << i;
  }
}

TEST_P(Activation, TheLargestElementIs127Steps) {
  std::vector<float> x = test::random_floats(512, 6);
  for (std::size_t b = 0; b < x.size(); b += 32) x[b + 7] = -20.0f;
  const Quantized row = quantize(GetParam(), x);
  EXPECT_EQ(row.d(0), 20.0f / 127.0f);
  for (std::size_t b = 0; b < x.size(); b += 32) EXPECT_EQ(row.q(b + 7), -127);
}

TEST_P(Activation, TiesGoToEven) {
  std::vector<float> x(256, 0.0f);
  for (std::size_t b = 0; b < x.size(); b += 32) {
    x[b] = 127.0f;  // d is exactly 1.
    x[b + 1] = 0.5f;
    x[b + 2] = 1.5f;
    x[b + 3] = -2.5f;
    x[b + 4] = -3.5f;
  }
  const Quantized row = quantize(GetParam(), x);
  for (std::size_t b = 0; b < x.size(); b += 32) {
    EXPECT_EQ(row.q(b + 1), 0);
    EXPECT_EQ(row.q(b + 2), 2);
    EXPECT_EQ(row.q(b + 3), -2);
    EXPECT_EQ(row.q(b + 4), -4);
  }
}

TEST_P(Activation, SumsEqualTheQuants) {
  for (const float offset : {0.0f, 100.0f}) {  // With the offset all q are near 127: the largest sums.
    std::vector<float> x = test::random_floats(768, 7);
    for (float& value : x) value += offset;
    const Quantized row = quantize(GetParam(), x);
    for (std::size_t s = 0; s < x.size() / row.sum_elements(); ++s) {
      int sum = 0;
      for (std::size_t i = 0; i < row.sum_elements(); ++i) sum += row.q(s * row.sum_elements() + i);
      EXPECT_EQ(row.sum(s), sum) << "sum " << s;
    }
  }
}

TEST_P(Activation, ZeroBlocksAreZero) {
  std::vector<float> x(512, 0.0f);
  x[1] = -0.0f;
  x[300] = 1.0f;  // The second block of 256 is not zero.
  const Quantized row = quantize(GetParam(), x);
  EXPECT_EQ(row.d(0), 0.0f);
  for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(row.q(i), 0);
  EXPECT_EQ(row.q(300), 127);
}

TEST_P(Activation, InfinitiesAndNansMarkTheirBlockOnly) {
  for (const float bad : {k_infinity, -k_infinity, k_nan, -k_nan}) {
    std::vector<float> x = test::random_floats(512, 8);
    x[17] = bad;
    x[18] = k_infinity;
    const Quantized row = quantize(GetParam(), x);
    EXPECT_FALSE(std::isfinite(row.d(0))) << bad;
    EXPECT_EQ(std::isnan(row.d(0)), std::isnan(bad));
    for (std::size_t i = 0; i < row.block(); ++i) EXPECT_EQ(row.q(i), 0) << bad;
    EXPECT_EQ(row.sum(0), 0);
    EXPECT_TRUE(std::isfinite(row.d(1)));
    EXPECT_NE(row.d(1), 0.0f);
  }
}

TEST_P(Activation, ExtremesStayInRange) {
  for (const float largest : {std::numeric_limits<float>::max(), std::numeric_limits<float>::min(), 0x1p-149f,
                              190 * 0x1p-149f, 0x1p-140f}) {
    std::vector<float> x(256);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? largest : -largest;
    const Quantized row = quantize(GetParam(), x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_GE(row.q(i), -127) << largest;
      EXPECT_LE(row.q(i), 127) << largest;
      EXPECT_EQ(row.q(i), (i % 2 == 0 ? 1 : -1) * row.q(0)) << largest;
    }
    // A step below the smallest float becomes a zero block; 190 smallest floats are 1.5 steps a quant, cut to
    // 127.
    if (largest == 0x1p-149f) {
      EXPECT_EQ(row.d(0), 0.0f);
    }
    if (largest == 190 * 0x1p-149f) {
      EXPECT_EQ(row.q(0), 127);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
