// Goal: half-precision conversion is exact one way and correctly rounded the other.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/quant.hpp"

namespace sluice::kernels {
namespace {

/// The definition: sign * mantissa * 2^exponent, evaluated in double, where it is exact.
double value_by_definition(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_nan_half(std::uint16_t bits) {
  return (bits & 0x7fff) > 0x7c00;
}

TEST(F16, EveryFiniteHalfHasItsDefinedValueAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7c00) == 0x7c00) continue;
    const float value = f16_to_f32(half);
    ASSERT_EQ(static_cast<double>(value), value_by_definition(half)) << "half " << bits;
    ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << "half " << bits;
    ASSERT_EQ(f32_to_f16(value), half) << "half " << bits;
  }
}

TEST(F16, InfinitiesAndNansSurvive) {
  EXPECT_EQ(f16_to_f32(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16_to_f32(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (!is_nan_half(half)) continue;
    ASSERT_TRUE(std::isnan(f16_to_f32(half))) << "half " << bits;
    // A NaN becomes quiet on the way, nothing else changes.
    ASSERT_EQ(f32_to_f16(f16_to_f32(half)), half | 0x0200) << "half " << bits;
  }
  // A NaN whose payload lies only in bits a half does not have must not become infinity.
  EXPECT_TRUE(is_nan_half(f32_to_f16(std::bit_cast<float>(0x7f800001u))));
}

TEST(F16, RoundsToNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float low = f16_to_f32(half);
    const float high = f16_to_f32(static_cast<std::uint16_t>(bits + 1));
    const float middle = (low + high) / 2;  // Exact: a float has bits to spare.
    const std::uint16_t even = bits % 2 == 0 ? half : static_cast<std::uint16_t>(bits + 1);
    ASSERT_EQ(f32_to_f16(middle), even) << "half " << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), half) << "half " << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, high)), bits + 1) << "half " << bits;
    ASSERT_EQ(f32_to_f16(-middle), even | 0x8000) << "half " << bits;
  }
}

TEST(F16, OverflowsToInfinityFromHalfWayToTheNextPower) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::max()), 0xfc00);
}

TEST(F16, UnderflowsToSignedZero) {
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // A tie between 0 and the smallest half: even.
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(f32_to_f16(-0x1p-26f), 0x8000);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0x0000);
}

TEST(Bf16, IsTheTopHalfOfAFloat) {
  EXPECT_EQ(bf16_to_f32(0x3f80), 1.0f);
  EXPECT_EQ(bf16_to_f32(0xc040), -3.0f);
  EXPECT_EQ(bf16_to_f32(0x0001), 0x1p-133f);
  EXPECT_TRUE(std::isnan(bf16_to_f32(0x7fc0)));
}

}  // namespace
}  // namespace sluice::kernels
