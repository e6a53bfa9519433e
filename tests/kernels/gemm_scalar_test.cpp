// Goal: the reference product of every weight type is the dot product of its decoded weights, and no output
// depends on what else is computed in the same call.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gguf/types.hpp"
#include "kernels/gemm.hpp"
#include "kernels/quant.hpp"
#include "kernels/scalar/gemm_scalar.hpp"
#include "kernels/scalar/visit_block.hpp"
#include "support/random_blocks.hpp"

namespace sluice::kernels {
namespace {

constexpr double k_epsilon = 0x1p-24;  // Unit roundoff of float.

struct alignas(64) Line {
  std::byte bytes[64];
};

/// Activation rows in a kernel's format, 64-byte aligned.
struct Activations {
  Activations(const GemmKernel& kernel, const std::vector<float>& values, std::size_t n_x, std::size_t n_cols)
      : layout(activation_layout(kernel.activation, n_cols)), storage(n_x * layout.row_bytes / sizeof(Line)) {
    for (std::size_t j = 0; j < n_x; ++j) {
      kernel.quantize(values.data() + j * n_cols, n_cols, storage.data()->bytes + j * layout.row_bytes);
    }
  }
  const std::byte* row(std::size_t j) const { return storage.data()->bytes + j * layout.row_bytes; }
  ActivationLayout layout;
  std::vector<Line> storage;
};

/// What the quantized activation stands for: d * q, exact in double.
std::vector<double> dequantize(const GemmKernel& kernel, const Activations& x, std::size_t j,
                               std::size_t n_cols) {
  std::vector<double> values(n_cols);
  const std::size_t block = kernel.activation == ActivationFormat::q8_32 ? 32 : 256;
  const std::byte* row = x.row(j);
  for (std::size_t c = 0; c < n_cols; ++c) {
    float value;
    if (kernel.activation == ActivationFormat::f32) {
      std::memcpy(&value, row + c * sizeof value, sizeof value);
      values[c] = value;
    } else {
      std::memcpy(&value, row + x.layout.scale_offset + c / block * sizeof value, sizeof value);
      values[c] = static_cast<double>(value) * static_cast<std::int8_t>(row[c]);
    }
  }
  return values;
}

/// |scale * q| + |min| of every element: what the float terms of a kernel add up from, of which the decoded
/// weight may be a small difference.
std::vector<double> magnitudes(TensorType type, const std::byte* row, std::size_t n_cols) {
  std::vector<double> result(n_cols);
  scalar::visit_block(type, [&]<typename Block>() {
    const auto* blocks = reinterpret_cast<const Block*>(row);
    for (std::size_t c = 0; c < n_cols; ++c) {
      const Block& block = blocks[c / Block::k_elements];
      const std::size_t e = c % Block::k_elements;
      if constexpr (scalar::UnpacksTo32<Block>) {
        scalar::Unpacked32 u;
        unpack(block, u);
        result[c] = std::abs(static_cast<double>(u.scale) * u.q[e]) + std::abs(static_cast<double>(u.min));
      } else if constexpr (scalar::UnpacksToParts<Block>) {
        scalar::UnpackedPart<Block::k_part_elements> u;
        unpack(block, e / Block::k_part_elements, u);
        result[c] = std::abs(static_cast<double>(u.scale) * u.q[e % Block::k_part_elements]);
      } else if constexpr (scalar::UnpacksTo256<Block>) {
        scalar::Unpacked256 u;
        unpack(block, u);
        result[c] = std::abs(static_cast<double>(u.d) * u.scale[e / 16] * u.q[e]) +
                    std::abs(static_cast<double>(u.d_min) * u.min[e / 16]);
      } else {
        float decoded[256];
        decode(block, decoded);
        result[c] = std::abs(static_cast<double>(decoded[e]));
      }
    }
  });
  return result;
}

/// Roundings that one product may pass on its way to the result, in units of k_epsilon of the sum of
/// magnitudes.
double roundings(const GemmKernel& kernel, std::size_t n_cols) {
  switch (kernel.activation) {
    // The product, 16 additions in its lane, 4 of lanes, one per chunk.
    case ActivationFormat::f32:
      return 1 + 16 + 4 + static_cast<double>(n_cols / 256 + 1);
    // d_w * d_x, the integer's conversion, their product, the minimum's term, one addition per scale; and the
    // decoded weight it is compared with has two or three of its own.
    case ActivationFormat::q8_32:
      return 4 + 3 + static_cast<double>(n_cols / 16);
    case ActivationFormat::q8_256:
      return 4 + 3 + static_cast<double>(n_cols / 256);
  }
  return 0;
}

class GemmScalar : public testing::TestWithParam<TensorType> {
 protected:
  TensorType type() const { return GetParam(); }
  std::size_t block() const { return gguf::type_traits(type()).block_elements; }
  GemmKernel kernel() const { return scalar::find_scalar_gemm(type()); }
};

std::vector<TensorType> weight_types() {
  std::vector<TensorType> types;
  for (const gguf::TypeTraits& traits : gguf::all_types()) {
    if (traits.use != gguf::TypeUse::number) types.push_back(traits.type);
  }
  return types;
}

/// The types whose kernel sums integers.
class GemmScalarIntegers : public GemmScalar {};

std::vector<TensorType> integer_dot_types() {
  std::vector<TensorType> types = weight_types();
  std::erase_if(types, [](TensorType type) {
    return scalar::find_scalar_gemm(type).activation == ActivationFormat::f32;
  });
  return types;
}

INSTANTIATE_TEST_SUITE_P(Types, GemmScalarIntegers, testing::ValuesIn(integer_dot_types()),
                         [](const auto& test) { return std::string(gguf::type_name(test.param)); });
INSTANTIATE_TEST_SUITE_P(Types, GemmScalar, testing::ValuesIn(weight_types()),
                         [](const auto& test) { return std::string(gguf::type_name(test.param)); });

TEST(FindScalarGemm, RefusesIntegersAndUnknownIds) {
  for (const TensorType type :
       {TensorType::i8, TensorType::i16, TensorType::i32, TensorType::i64, TensorType::f64}) {
    EXPECT_EQ(scalar::find_scalar_gemm(type).gemm, nullptr) << gguf::type_name(type);
  }
  EXPECT_EQ(scalar::find_scalar_gemm(static_cast<TensorType>(77)).gemm, nullptr);
}

TEST(FindScalarGemm, EachTypeHasItsPartner) {
  EXPECT_EQ(scalar::find_scalar_gemm(TensorType::bf16).activation, ActivationFormat::f32);
  EXPECT_EQ(scalar::find_scalar_gemm(TensorType::mxfp4).activation, ActivationFormat::q8_32);
  EXPECT_EQ(scalar::find_scalar_gemm(TensorType::q4_k).activation, ActivationFormat::q8_256);
  EXPECT_EQ(scalar::find_scalar_gemm(TensorType::iq4_xs).activation, ActivationFormat::q8_256);
  EXPECT_EQ(scalar::find_scalar_gemm(TensorType::iq2_s).activation, ActivationFormat::q8_256);
  EXPECT_EQ(scalar::find_scalar_gemm(TensorType::tq1_0).activation, ActivationFormat::q8_256);
  EXPECT_EQ(scalar::find_scalar_gemm(TensorType::nvfp4).activation, ActivationFormat::q8_32);
  EXPECT_EQ(integer_dot_types().size(), 26u);
}

TEST_P(GemmScalar, EqualsTheDotProductOfDecodedWeights) {
  const GemmKernel k = kernel();
  ASSERT_NE(k.gemm, nullptr);
  constexpr std::size_t n_rows = 3, n_x = 2;
  std::vector<std::size_t> widths = {block(), 3 * block(), 1024};
  if (block() == 1) widths.insert(widths.end(), {15, 17, 255, 259});
  for (const std::size_t n_cols : widths) {
    const std::vector<std::byte> w = test::random_rows(type(), n_rows, n_cols, 21);
    const std::vector<float> x = test::random_floats(n_x * n_cols, 22);
    const Activations quantized(k, x, n_x, n_cols);
    const std::size_t w_row_bytes = gguf::row_bytes(type(), n_cols);
    std::vector<float> y(n_x * n_rows, 999.0f);
    k.gemm(w.data(), w_row_bytes, n_rows, quantized.row(0), quantized.layout.row_bytes, n_x, n_cols, y.data(),
           n_rows);

    std::vector<float> decoded(n_cols);
    for (std::size_t i = 0; i < n_rows; ++i) {
      ASSERT_TRUE(dequantize_row(type(), w.data() + i * w_row_bytes, decoded.data(), n_cols));
      const std::vector<double> magnitude = magnitudes(type(), w.data() + i * w_row_bytes, n_cols);
      for (std::size_t j = 0; j < n_x; ++j) {
        const std::vector<double> x_hat = dequantize(k, quantized, j, n_cols);
        double expected = 0, of_floats = 0, total = 0, quantization = 0;
        for (std::size_t c = 0; c < n_cols; ++c) {
          const double original = x[j * n_cols + c];
          expected += decoded[c] * x_hat[c];
          of_floats += decoded[c] * original;
          total += magnitude[c] * std::abs(x_hat[c]);
          quantization += std::abs(decoded[c]) * std::abs(x_hat[c] - original);
        }
        const double tolerance = roundings(k, n_cols) * k_epsilon * total * (1 + 0x1p-10);
        const double actual = y[j * n_rows + i];
        EXPECT_LE(std::abs(actual - expected), tolerance)
            << "row " << i << ", x " << j << ", columns " << n_cols;
        EXPECT_LE(std::abs(actual - of_floats), tolerance + quantization)
            << "row " << i << ", x " << j << ", columns " << n_cols;
        // The bounds above would accept anything if they were wide: the whole error stays well below the
        // typical size of a sum of n random terms.
        EXPECT_LE(tolerance, 0.001 * total);
      }
    }
  }
}

TEST_P(GemmScalar, ResultsDoNotDependOnTheBatch) {
  const GemmKernel k = kernel();
  ASSERT_NE(k.gemm, nullptr);
  constexpr std::size_t n_rows = 7, n_x = 5, stride = n_rows + 4;
  const std::size_t n_cols = block() == 1 ? 777 : 1280;
  const std::size_t w_row_bytes = gguf::row_bytes(type(), n_cols);
  const std::vector<std::byte> w = test::random_rows(type(), n_rows, n_cols, 31);
  const Activations x(k, test::random_floats(n_x * n_cols, 32), n_x, n_cols);
  std::vector<float> all(n_x * stride, -5.0f);
  k.gemm(w.data(), w_row_bytes, n_rows, x.row(0), x.layout.row_bytes, n_x, n_cols, all.data(), stride);
  for (std::size_t j = 0; j < n_x; ++j) {
    for (std::size_t i = 0; i < n_rows; ++i) {
      float one = 999.0f;
      k.gemm(w.data() + i * w_row_bytes, w_row_bytes, 1, x.row(j), x.layout.row_bytes, 1, n_cols, &one, 1);
      EXPECT_EQ(std::memcmp(&one, &all[j * stride + i], sizeof one), 0) << "row " << i << ", x " << j;
    }
    // Nothing is written between the rows of y.
    for (std::size_t i = n_rows; i < stride; ++i) EXPECT_EQ(all[j * stride + i], -5.0f);
  }
}

TEST_P(GemmScalar, ReadsRowsAtAnyAddressAndDistance) {
  const GemmKernel k = kernel();
  constexpr std::size_t n_rows = 2, n_cols = 512, shift = 3, gap = 5;
  const std::size_t row_bytes = gguf::row_bytes(type(), n_cols);
  const std::vector<std::byte> w = test::random_rows(type(), n_rows, n_cols, 41);
  std::vector<std::byte> spread(shift + n_rows * (row_bytes + gap));
  for (std::size_t i = 0; i < n_rows; ++i) {
    std::memcpy(spread.data() + shift + i * (row_bytes + gap), w.data() + i * row_bytes, row_bytes);
  }
  const Activations x(k, test::random_floats(n_cols, 42), 1, n_cols);
  float expected[n_rows], actual[n_rows];
  k.gemm(w.data(), row_bytes, n_rows, x.row(0), x.layout.row_bytes, 1, n_cols, expected, n_rows);
  k.gemm(spread.data() + shift, row_bytes + gap, n_rows, x.row(0), x.layout.row_bytes, 1, n_cols, actual,
         n_rows);
  EXPECT_EQ(std::memcmp(expected, actual, sizeof expected), 0);
}

TEST_P(GemmScalar, ANanInTheInputReachesTheOutput) {
  const GemmKernel k = kernel();
  constexpr std::size_t n_cols = 512;
  const std::vector<std::byte> w = test::random_rows(type(), 1, n_cols, 51);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = test::random_floats(n_cols, 52);
    values[300] = bad;
    const Activations x(k, values, 1, n_cols);
    float y = 0.0f;
    k.gemm(w.data(), gguf::row_bytes(type(), n_cols), 1, x.row(0), x.layout.row_bytes, 1, n_cols, &y, 1);
    EXPECT_FALSE(std::isfinite(y)) << bad;
  }
}

/// Where a block keeps its floating-point scales.
std::size_t scale_bytes(TensorType type) {
  switch (type) {
    case TensorType::mxfp4:
      return 1;
    case TensorType::q4_1:
    case TensorType::nvfp4:
    case TensorType::q5_1:
    case TensorType::q2_k:
    case TensorType::q4_k:
    case TensorType::q5_k:
      return 4;
    case TensorType::iq1_m:  // The top nibbles of four words.
      return 8;
    default:
      return 2;
  }
}
bool has_scales_last(TensorType type) {
  using enum TensorType;
  return type == q2_k || type == q3_k || type == q6_k || type == iq1_m || type == tq1_0 || type == tq2_0;
}

/// The largest integers a format allows must not overflow the int32 sums: every q, scale and activation
/// extreme.
TEST_P(GemmScalarIntegers, SaturatedBlocksStayExact) {
  const GemmKernel k = kernel();
  constexpr std::size_t n_cols = 256;
  const std::size_t row_bytes = gguf::row_bytes(type(), n_cols);
  for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
    // Keep the floating-point scales of a valid block and fill everything else.
    const std::vector<std::byte> a = test::random_rows(type(), 1, n_cols, 61);
    std::vector<std::byte> w(row_bytes, static_cast<std::byte>(fill));
    const std::size_t block_bytes = gguf::type_traits(type()).block_bytes;
    for (std::size_t at = 0; at < row_bytes; at += block_bytes) {
      const std::size_t bytes = scale_bytes(type());
      const std::size_t offset = at + (has_scales_last(type()) ? block_bytes - bytes : 0);
      std::memcpy(w.data() + offset, a.data() + offset, bytes);
    }
    std::vector<float> decoded(n_cols);
    ASSERT_TRUE(dequantize_row(type(), w.data(), decoded.data(), n_cols));
    const std::vector<double> magnitude = magnitudes(type(), w.data(), n_cols);
    for (const float sign : {1.0f, -1.0f}) {
      const Activations x(k, std::vector<float>(n_cols, 127.0f * sign), 1, n_cols);
      float y = 0.0f;
      k.gemm(w.data(), row_bytes, 1, x.row(0), x.layout.row_bytes, 1, n_cols, &y, 1);
      double expected = 0, total = 0;
      for (std::size_t c = 0; c < n_cols; ++c) {
        expected += 127.0 * sign * decoded[c];
        total += 127.0 * magnitude[c];
      }
      EXPECT_LE(std::abs(y - expected), roundings(k, n_cols) * k_epsilon * total * (1 + 0x1p-10)) << fill;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
