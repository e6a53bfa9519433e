// Goal: operations on heads give the bits that the same operation on rows of their own gives, wherever the
// heads lie, whatever the batch and the threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops_test_support.hpp"

namespace sluice::kernels {
namespace {

using test::Matrix;
using test::RandomWeight;
using test::Table;

constexpr std::uint32_t k_n_heads = 5, k_max_rows = 70;

/// Row by row, each head with its own part of the weight.
Matrix products_one_by_one(Table& table, const Matrix& x, const Weight& w, std::uint32_t step,
                           std::uint32_t first_col, std::uint32_t n_out) {
  Matrix y(x.n_rows(), k_n_heads * n_out);
  Matrix one(1, w.n_in), result(1, n_out);
  for (std::uint32_t row = 0; row < x.n_rows(); ++row) {
    for (std::uint32_t head = 0; head < k_n_heads; ++head) {
      std::copy_n(x.at(row) + head * step + first_col, w.n_in, one.at(0));
      Weight part = w;
      part.data += std::size_t{head} * n_out * w.row_bytes;
      part.n_out = n_out;
      const Product product{part, result, nullptr};
      table->matmul(one, {&product, 1});
      std::copy_n(result.at(0), n_out, y.at(row) + head * n_out);
    }
  }
  return y;
}

TEST(Heads, ProductsAreThoseOfEachHeadAlone) {
  constexpr std::uint32_t k_n_out = 37, k_first_col = 3;
  for (const platform::Isa isa : platform::supported_isas()) {
    for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::q8_0, TensorType::q4_k}) {
      const std::uint32_t n_in = type == TensorType::q4_k ? 256 : 96, step = n_in + 10;
      const RandomWeight w(type, n_in, k_n_heads * k_n_out, 3);
      Weight scaled = w;
      scaled.scale = 1.5f;
      const Matrix x = Matrix::random(k_max_rows, k_n_heads * step, 4);
      Table alone(isa);
      alone->reserve({1, 256, 0});
      const Matrix expected = products_one_by_one(alone, x, scaled, step, k_first_col, k_n_out);
      for (const int n_threads : {1, 3}) {
        const Table table(isa, n_threads);
        table->reserve({k_max_rows, 256, 0, 0, k_n_heads * 256});
        for (const std::uint32_t n_rows : {1u, 2u, k_max_rows}) {
          const Matrix y(n_rows, k_n_heads * k_n_out, 16);
          table->matmul_heads(heads_of(x.rows().first(n_rows), step, k_first_col, n_in), {scaled, 0, k_n_out},
                              heads_of(y, k_n_out, 0, k_n_out));
          EXPECT_TRUE(y.margins_untouched());
          EXPECT_TRUE(y.same_bits(expected, n_rows))
              << platform::isa_name(isa) << " " << n_rows << " rows of " << gguf::type_name(type);
        }
      }
    }
  }
}

TEST(Heads, ProductsLeaveTheOtherColumnsAsTheyAre) {
  const Table table(platform::choose_isa());
  table->reserve({2, 64, 0, 0, k_n_heads * 256});
  const RandomWeight w(TensorType::f32, 16, k_n_heads * 8, 5);
  const Matrix x = Matrix::random(2, k_n_heads * 16, 6), y = Matrix::random(2, k_n_heads * 12, 7);
  const Matrix before = y.copy();
  table->matmul_heads(heads_of(x, 16, 0, 16), {w, 0, 8}, heads_of(y, 12, 4, 8));
  for (std::uint32_t row = 0; row < 2; ++row) {
    for (std::uint32_t col = 0; col < k_n_heads * 12; ++col)
      EXPECT_EQ(y.at(row)[col] == before.at(row)[col], col % 12 < 4) << col;
  }
}

TEST(Heads, ProductsTakeTheirRowsOfEveryHead) {
  const Table table(platform::choose_isa());
  table->reserve({3, 64, 0, 0, k_n_heads * 256});
  const RandomWeight w(TensorType::f16, 32, k_n_heads * 20, 5);
  const Matrix x = Matrix::random(3, k_n_heads * 32, 6), all(3, k_n_heads * 20), some(3, k_n_heads * 7);
  table->matmul_heads(heads_of(x, 32, 0, 32), {w, 0, 20}, heads_of(all, 20, 0, 20));
  table->matmul_heads(heads_of(x, 32, 0, 32), {w, 11, 20}, heads_of(some, 7, 0, 7));
  for (std::uint32_t row = 0; row < 3; ++row) {
    for (std::uint32_t head = 0; head < k_n_heads; ++head) {
      for (std::uint32_t i = 0; i < 7; ++i)
        EXPECT_EQ(some.at(row)[head * 7 + i], all.at(row)[head * 20 + 11 + i]);
    }
  }
}

TEST(Heads, TransposedProductsMatchDouble) {
  constexpr std::uint32_t k_n_in = 40, k_n_out = 512, k_step = 50, k_first = 6;
  for (const platform::Isa isa : platform::supported_isas()) {
    const RandomWeight w(TensorType::q8_0, k_n_out, k_n_heads * k_step, 9);
    Weight scaled = w;
    scaled.scale = 1.5f;
    const Matrix x = Matrix::random(k_max_rows, k_n_heads * 44, 10);
    Table one(isa), many(isa, 3);
    one->reserve({1, 64, 0});
    many->reserve({k_max_rows, 64, 0});
    const Matrix y(k_max_rows, k_n_heads * k_n_out, 16), alone(1, k_n_heads * k_n_out);
    many->matmul_heads_transposed(heads_of(x, 44, 2, k_n_in), {scaled, k_first, k_step},
                                  heads_of(y, k_n_out, 0, k_n_out));
    EXPECT_TRUE(y.margins_untouched());
    for (const std::uint32_t row : {0u, 1u, k_max_rows - 1}) {
      one->matmul_heads_transposed(heads_of(x.rows().from(row).first(1), 44, 2, k_n_in),
                                   {scaled, k_first, k_step}, heads_of(alone, k_n_out, 0, k_n_out));
      EXPECT_EQ(std::memcmp(alone.at(0), y.at(row), k_n_heads * k_n_out * sizeof(float)), 0) << row;
    }
    for (std::uint32_t head = 0; head < k_n_heads; ++head) {
      std::vector<double> expected(k_n_out), magnitude(k_n_out);
      for (std::uint32_t i = 0; i < k_n_in; ++i) {
        const std::vector<float> row = w.row(head * k_step + k_first + i);
        for (std::uint32_t j = 0; j < k_n_out; ++j) {
          const double term = 1.5 * x.at(1)[head * 44 + 2 + i] * row[j];
          expected[j] += term;
          magnitude[j] += std::abs(term);
        }
      }
      for (std::uint32_t j = 0; j < k_n_out; ++j)
        ASSERT_NEAR(y.at(1)[head * k_n_out + j], expected[j], magnitude[j] * (k_n_in + 8) * test::k_half_ulp);
    }
  }
}

TEST(Heads, RotationIsThatOfWholeHeads) {
  constexpr std::uint32_t k_dim = 16, k_step = 24, k_n_rows = 9;
  for (const bool neox : {false, true}) {
    const Table table(platform::choose_isa(), 2);
    table->reserve({k_n_rows + 2, 64, 0, k_dim});
    RopeParams curve;
    curve.n_rot = k_dim;
    curve.neox = neox;
    table->set_curves({&curve, 1});
    std::vector<std::uint32_t> positions, sequence_of(k_n_rows + 2, 0);
    for (std::uint32_t i = 0; i < k_n_rows + 2; ++i) positions.push_back(100 + 3 * i);
    table->begin_pass({positions, sequence_of, {}, {}});
    const Matrix x = Matrix::random(k_n_rows, k_n_heads * k_step, 8), before = x.copy();
    const Matrix y(k_n_rows, k_n_heads * k_dim), expected(k_n_rows, k_n_heads * k_dim);
    for (std::uint32_t row = 0; row < k_n_rows; ++row) {
      for (std::uint32_t head = 0; head < k_n_heads; ++head)
        std::copy_n(x.at(row) + head * k_step + 8, k_dim, expected.at(row) + head * k_dim);
    }
    table->rope(expected, k_dim, 0, 2);
    table->rope_heads(heads_of(x, k_step, 8, k_dim), 0, 2, heads_of(y, k_dim, 0, k_dim));
    EXPECT_TRUE(y.same_bits(expected));
    EXPECT_TRUE(x.same_bits(before));
  }
}

}  // namespace
}  // namespace sluice::kernels
