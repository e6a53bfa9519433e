// Goal: the float loops meet their stated error bounds on every instruction set, and conversions are exact.
#include "kernels/vector_math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/ops_test_support.hpp"

namespace sluice::kernels {
namespace {

using test::k_half_ulp;
using test::Matrix;

class VectorMathTest : public ::testing::TestWithParam<platform::Isa> {
 protected:
  const VectorMath& math = vector_math(GetParam());
  const AttentionMath& attention = attention_math(GetParam());
};

TEST_P(VectorMathTest, ExpKeepsItsErrorBound) {
  std::vector<float> x;
  for (double value = -87.3; value <= 88.0; value += 0.00137) x.push_back(static_cast<float>(value));
  std::vector<float> y = x;
  math.exp_minus(y.data(), 0.0f, y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(double{x[i]});
    ASSERT_LE(std::abs(y[i] - expected), 3e-7 * expected) << "exp of " << x[i];
  }
}

TEST_P(VectorMathTest, ExpHoldsItsEndsAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t n : {1u, 3u, 16u, 33u}) {
    std::vector<float> x(n, -infinity), y(n, infinity), z(n, std::nanf("")), zero(n, 0.0f), low(n, -88.0f);
    math.exp_minus(x.data(), 0.0f, n);
    math.exp_minus(y.data(), 0.0f, n);
    math.exp_minus(z.data(), 0.0f, n);
    math.exp_minus(zero.data(), 0.0f, n);
    math.exp_minus(low.data(), 0.0f, n);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(x[i], 0.0f);
      EXPECT_TRUE(std::isfinite(y[i]) && y[i] > 1e38f) << y[i];
      EXPECT_TRUE(std::isnan(z[i]));
      EXPECT_EQ(zero[i], 1.0f);
      EXPECT_EQ(low[i], 0.0f);
    }
  }
}

TEST_P(VectorMathTest, AnElementDoesNotDependOnItsPlace) {
  // The same value in every place of rows of every short length: whole vectors and rests agree.
  for (const float value : {-3.7f, -0.01f, 0.3f, 5.5f}) {
    float expected_exp = value, expected_swiglu = 0;
    const float up = 1.25f;
    math.exp_minus(&expected_exp, 0.5f, 1);
    math.activate[0](&value, &up, &expected_swiglu, 1);
    for (std::size_t n = 1; n < 40; ++n) {
      std::vector<float> x(n, value), gate(n, value), ups(n, up), out(n);
      math.exp_minus(x.data(), 0.5f, n);
      math.activate[0](gate.data(), ups.data(), out.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(x[i], expected_exp);
        ASSERT_EQ(out[i], expected_swiglu);
      }
    }
  }
}

TEST_P(VectorMathTest, SumOfSquaresMatchesDouble) {
  for (const std::uint32_t n : {1u, 7u, 16u, 64u, 100u, 2048u, 5001u}) {
    const Matrix x = Matrix::random(1, n, n);
    double expected = 0;
    for (std::uint32_t i = 0; i < n; ++i) expected += double{x.at(0)[i]} * x.at(0)[i];
    // All terms are positive, so each of at most n + 8 roundings is relative to a part of the sum.
    EXPECT_NEAR(math.sum_squares(x.at(0), n), expected, expected * (n + 8.0) * k_half_ulp) << n;
  }
}

TEST_P(VectorMathTest, SwigluMatchesDouble) {
  const std::uint32_t n = 1003;
  const Matrix gate = Matrix::random(1, n, 1, 6.0f), up = Matrix::random(1, n, 2);
  Matrix out(1, n);
  math.activate[0](gate.at(0), up.at(0), out.at(0), n);
  for (std::uint32_t i = 0; i < n; ++i) {
    const double g = gate.at(0)[i];
    const double expected = g / (1.0 + std::exp(-g)) * up.at(0)[i];
    ASSERT_NEAR(out.at(0)[i], expected, std::abs(expected) * (3e-7 + 4 * k_half_ulp)) << g;
  }
  const float extremes[2] = {-1e30f, 1e30f}, ones[2] = {1.0f, 1.0f};
  float results[2];
  math.activate[0](extremes, ones, results, 2);
  EXPECT_NEAR(results[0], 0.0f, 1e-7f);
  EXPECT_EQ(results[1], 1e30f);
}

TEST_P(VectorMathTest, OtherActivationsMatchDouble) {
  const std::uint32_t n = 1003;
  const Matrix gate = Matrix::random(1, n, 1, 6.0f), up = Matrix::random(1, n, 2, 6.0f);
  Matrix gelu(1, n), oai(1, n);
  math.activate[1](gate.at(0), up.at(0), gelu.at(0), n);
  math.activate[2](gate.at(0), up.at(0), oai.at(0), n);
  std::size_t n_clamped = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const double g = gate.at(0)[i], u = up.at(0)[i];
    const double inner = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
    // The relative error of exp grows with that of its argument; exp(88) stands for all that is larger.
    const double of_gelu = g / (1 + std::exp(-2 * inner)) * u;
    ASSERT_NEAR(gelu.at(0)[i], of_gelu,
                std::abs(of_gelu) * (6e-7 + 10 * k_half_ulp * std::abs(inner)) + 1e-30)
        << g;
    const double held = std::min(g, 7.0), linear = std::clamp(u, -7.0, 7.0) + 1;
    const double of_oai = held / (1 + std::exp(-1.702 * held)) * linear;
    n_clamped += held != g || linear != u + 1;
    ASSERT_NEAR(oai.at(0)[i], of_oai,
                std::abs(of_oai) * (6e-7 + 8 * k_half_ulp * std::abs(held)) + std::abs(held) * k_half_ulp * 8)
        << g << " " << u;
  }
  EXPECT_GT(n_clamped, 100u);
  const float extremes[4] = {-1e30f, 1e30f, std::nanf(""), 1.0f};
  const float others[4] = {1.0f, 1.0f, 1.0f, std::nanf("")};
  for (const std::size_t kind : {1u, 2u}) {
    float results[4];
    math.activate[kind](extremes, others, results, 4);
    EXPECT_NEAR(results[0], 0.0f, 1e-7f);
    EXPECT_NEAR(results[1] / (kind == 1 ? 1e30f : 14.0f), 1.0f, 1e-5f);
    EXPECT_TRUE(std::isnan(results[2]) && std::isnan(results[3]));
  }
}

TEST_P(VectorMathTest, SoftcapMatchesDouble) {
  const std::uint32_t n = 517;
  for (const float cap : {0.5f, 30.0f}) {
    const Matrix x = Matrix::random(1, n, 3, 40.0f), y = x.copy();
    math.softcap(y.at(0), cap, n);
    for (std::uint32_t i = 0; i < n; ++i)
      ASSERT_NEAR(y.at(0)[i], cap * std::tanh(double{x.at(0)[i]} / cap), cap * 1e-6) << x.at(0)[i];
  }
}

TEST_P(VectorMathTest, WidensEveryHalfExactly) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const Matrix wide(1, 65536);
  attention.widen(halves.data(), 1, halves.size(), wide.at(0), halves.size());
  for (std::uint32_t i = 0; i < halves.size(); ++i) {
    const float expected = f16_to_f32(halves[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide.at(0)[i])) << i;
    } else {
      ASSERT_EQ(std::memcmp(&expected, wide.at(0) + i, sizeof expected), 0) << i;
    }
  }
}

TEST_P(VectorMathTest, NarrowsAsTheScalarReference) {
  std::vector<float> x;
  for (std::uint32_t half = 0; half < 0x7c00; ++half) {
    // Each value, the middle to the next one (a tie), and the floats beside it.
    const float value = f16_to_f32(static_cast<std::uint16_t>(half));
    const float middle = (value + f16_to_f32(static_cast<std::uint16_t>(half + 1))) / 2;
    for (const float near : {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      x.push_back(near);
      x.push_back(-near);
    }
  }
  for (const float value : {65519.9f, 65520.0f, 1e10f, 1e-10f, std::numeric_limits<float>::infinity()})
    x.push_back(value);
  std::vector<std::uint16_t> y(x.size());
  math.to_f16(x.data(), y.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], f32_to_f16(x[i])) << x[i];
}

TEST_P(VectorMathTest, ScoresAreDotProductsWhateverTheKeysPlace) {
  const std::uint32_t dim = 96;
  Matrix keys = Matrix::random(k_key_block, dim, 5);
  const Matrix queries = Matrix::random(3, dim, 6);
  Matrix scores(3, k_segment);
  attention.score(keys.at(0), queries.at(0), 3, dim, scores.at(0));
  for (std::uint32_t query = 0; query < 3; ++query) {
    for (std::uint32_t key = 0; key < k_key_block; ++key) {
      double expected = 0, magnitude = 0;
      for (std::uint32_t i = 0; i < dim; ++i) {
        const double term = double{keys.at(key)[i]} * queries.at(query)[i];
        expected += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(scores.at(query)[key], expected, magnitude * (dim + 1) * k_half_ulp);
    }
  }
  for (std::uint32_t key = 1; key < k_key_block; ++key) std::copy_n(keys.at(0), dim, keys.at(key));
  attention.score(keys.at(0), queries.at(0), 3, dim, scores.at(0));
  for (std::uint32_t query = 0; query < 3; ++query) {
    for (std::uint32_t key = 1; key < k_key_block; ++key)
      ASSERT_EQ(scores.at(query)[key], scores.at(query)[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, VectorMathTest, ::testing::ValuesIn(platform::supported_isas()),
                         [](const auto& param) { return std::string(platform::isa_name(param.param)); });

}  // namespace
}  // namespace sluice::kernels
