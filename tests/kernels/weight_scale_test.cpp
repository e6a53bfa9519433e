// Goal: a weight's second scale multiplies what a product gives, each matrix by its own, before a bias.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.hpp"
#include "kernels/ops_test_support.hpp"
#include "platform/cpu_features.hpp"
#include "support/random_blocks.hpp"

namespace sluice::kernels {
namespace {

using test::Matrix;
using test::Table;

TEST(WeightScale, MultipliesTheOutputsBeforeTheBias) {
  const std::uint32_t n_in = 512, n_out = 70, n_rows = 3;
  const float scale = 0.013f;
  const std::vector<float> bias = sluice::test::random_floats(n_out, 5);
  const Matrix x = Matrix::random(n_rows, n_in, 2);
  const std::vector<std::byte> blocks = sluice::test::random_rows(TensorType::nvfp4, n_out, n_in, 1);
  const Weight w{blocks.data(), TensorType::nvfp4, n_in, n_out, blocks.size() / n_out};
  Weight scaled = w;
  scaled.scale = scale;
  const Matrix reference(n_rows, n_out, 10);
  for (const platform::Isa isa : platform::supported_isas()) {  // The scalar reference first.
    const Table table(isa);
    table->reserve({16, n_in, 0});
    const Matrix plain(n_rows, n_out, 10), y(n_rows, n_out, 10), with_bias(n_rows, n_out, 10);
    const Product products[] = {{w, plain, nullptr}, {scaled, y, nullptr}, {scaled, with_bias, bias.data()}};
    table->matmul(x, products);
    EXPECT_TRUE(y.margins_untouched());
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      for (std::uint32_t i = 0; i < n_out; ++i) {
        ASSERT_EQ(y.at(row)[i], plain.at(row)[i] * scale);
        ASSERT_EQ(with_bias.at(row)[i], y.at(row)[i] + bias[i]);
        if (isa == platform::Isa::scalar) reference.at(row)[i] = y.at(row)[i];
        // Some 40 roundings of sums whose magnitudes are below 100.
        ASSERT_NEAR(y.at(row)[i], reference.at(row)[i], 40 * 100 * 0x1p-24 * scale)
            << platform::isa_name(isa);
      }
    }
  }
}

/// Powers of two, so that scaling the weights themselves gives the same bits.
TEST(WeightScale, EachMatrixOfAnExpertHasItsOwn) {
  const std::uint32_t n_embd = 64, n_ff = 96, n_rows = 5;
  const float scales[] = {0.25f, 8.0f, 0.5f};
  std::vector<float> plain[3], multiplied[3];
  Weight by_scale[3], by_weights[3];
  for (int i = 0; i < 3; ++i) {
    plain[i] = sluice::test::random_floats(std::size_t{n_embd} * n_ff, 20 + static_cast<std::uint64_t>(i));
    for (const float value : plain[i]) multiplied[i].push_back(value * scales[i]);
    const std::uint32_t n_in = i == 2 ? n_ff : n_embd, n_out = i == 2 ? n_embd : n_ff;
    const auto weight = [&](const std::vector<float>& values, float scale) {
      return Weight{reinterpret_cast<const std::byte*>(values.data()),
                    TensorType::f32,
                    n_in,
                    n_out,
                    4ull * n_in,
                    scale};
    };
    by_scale[i] = weight(plain[i], scales[i]);
    by_weights[i] = weight(multiplied[i], 1.0f);
  }
  const std::uint32_t in[] = {0, 1, 3, 4};
  for (const bool neighbours : {true, false}) {  // Rows of the output that lie together, and that do not.
    const std::uint32_t out_rows[] = {0, 1, 2, neighbours ? 3u : 4u};
    const Table table(platform::choose_isa());
    table->reserve({n_rows, n_embd, n_ff});
    const Matrix x = Matrix::random(n_rows, n_embd, 1, 1.0f, 16);
    const Matrix a(n_rows, n_embd, 16), b(n_rows, n_embd, 16);
    const ExpertCall scaled{by_scale[0], by_scale[1], by_scale[2], in, out_rows};
    const ExpertCall reference{by_weights[0], by_weights[1], by_weights[2], in, out_rows};
    table->begin_experts(x, Activation::silu);
    table->run_experts({&scaled, 1}, a);
    table->run_experts({&reference, 1}, b);
    for (const std::uint32_t row : out_rows) {
      for (std::uint32_t c = 0; c < n_embd; ++c) ASSERT_EQ(a.at(row)[c], b.at(row)[c]) << row << " " << c;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
