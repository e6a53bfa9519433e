// Goal: attention over the paged cache equals the textbook formula, and its bits depend on nothing but the
// row: not on the batch, the threads or the way the work was split.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops_test_support.hpp"

namespace sluice::kernels {
namespace {

using test::k_half_ulp;
using test::Matrix;
using test::Table;

constexpr std::uint32_t k_layer = 1;

/// A sequence with random keys and values in its pages; positions not yet written hold NaN.
class Sequence {
 public:
  Sequence(Ops& ops, const KvShape& shape, std::uint32_t n_positions, std::uint32_t seed) : shape_(shape) {
    const std::uint32_t n_pages = (n_positions + KvShape::page_tokens - 1) / KvShape::page_tokens;
    for (std::uint32_t page = 0; page < n_pages; ++page) {
      storage_.emplace_back(shape.page_bytes() / 2, std::uint16_t{0x7e00});
      pages_.push_back(reinterpret_cast<std::byte*>(storage_.back().data()));
    }
    const Matrix k = Matrix::random(n_positions, shape.n_kv_heads * shape.k_head_dim, seed);
    const Matrix v = Matrix::random(n_positions, shape.n_kv_heads * shape.v_head_dim, seed + 1, 1.0f, 16);
    std::vector<RowPosition> rows;
    for (std::uint32_t position = 0; position < n_positions; ++position) rows.push_back(at(position));
    ops.store_kv(k, v, shape, k_layer, rows);
  }
  Sequence(Sequence&&) = default;
  Sequence(const Sequence&) = delete;

  RowPosition at(std::uint32_t position) const { return {pages_.data(), position}; }
  double key(std::uint32_t position, std::uint32_t head, std::uint32_t i) const {
    return value_at(position, 0, head, i, shape_.k_head_dim);
  }
  double value(std::uint32_t position, std::uint32_t head, std::uint32_t i) const {
    return value_at(position, shape_.k_bytes() / 2, head, i, shape_.v_head_dim);
  }

 private:
  double value_at(std::uint32_t position, std::size_t part, std::uint32_t head, std::uint32_t i,
                  std::uint32_t dim) const {
    const auto& page = storage_[position / KvShape::page_tokens];
    const std::size_t slot = position % KvShape::page_tokens;
    const std::size_t row = head * std::size_t{KvShape::page_tokens} + slot;
    return f16_to_f32(page[k_layer * shape_.layer_bytes() / 2 + part + row * dim + i]);
  }
  KvShape shape_;
  std::vector<std::vector<std::uint16_t>> storage_;
  std::vector<std::byte*> pages_;
};

KvShape kv_shape(std::uint32_t n_kv_heads, std::uint32_t k_dim, std::uint32_t v_dim) {
  return {3, n_kv_heads, k_dim, v_dim};
}

/// Checks one output row against double arithmetic with a tolerance from the number of roundings.
void expect_attention(const Sequence& sequence, const KvShape& shape, const AttentionParams& params,
                      std::uint32_t position, const float* q, const float* out) {
  const std::uint32_t group = params.n_heads / shape.n_kv_heads;
  const std::uint32_t begin =
      params.window > 0 && position + 1 > params.window ? position + 1 - params.window : 0;
  for (std::uint32_t head = 0; head < params.n_heads; ++head) {
    const std::uint32_t kv = head / group;
    std::vector<double> scores;
    double max = -std::numeric_limits<double>::infinity(), score_error = 0;
    for (std::uint32_t p = begin; p <= position; ++p) {
      double dot = 0, magnitude = 0;
      for (std::uint32_t i = 0; i < shape.k_head_dim; ++i) {
        const double term = q[head * shape.k_head_dim + i] * sequence.key(p, kv, i);
        dot += term;
        magnitude += std::abs(term);
      }
      double score = dot * params.scale;
      score_error = std::max(score_error, magnitude * params.scale * (shape.k_head_dim + 4) * k_half_ulp);
      if (params.softcap > 0) {
        score = params.softcap * std::tanh(score / params.softcap);
        score_error = std::max(score_error, params.softcap * (3e-7 + 4 * k_half_ulp));
      }
      scores.push_back(score);
      max = std::max(max, score);
    }
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    // A probability carries the errors of its score and of exp; then come the sums over the keys and one
    // merge per segment (two exps and three roundings).
    const auto n = static_cast<double>(scores.size());
    const double relative = 2 * (score_error + 3e-7 + max * k_half_ulp) + (n + n / 256 * 16 + 8) * k_half_ulp;
    for (std::uint32_t i = 0; i < shape.v_head_dim; ++i) {
      double expected = 0, magnitude = 0;
      for (std::uint32_t p = begin; p <= position; ++p) {
        const double term = scores[p - begin] / sum * sequence.value(p, kv, i);
        expected += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(out[head * shape.v_head_dim + i], expected, magnitude * relative)
          << "position " << position << " head " << head << " element " << i;
    }
  }
}

struct Case {
  std::uint32_t n_heads, n_kv_heads, k_dim, v_dim;
  std::uint32_t window;
  float softcap;
};

void check_case(platform::Isa isa, const Case& c, const std::vector<std::uint32_t>& positions) {
  const Table table(isa, 2);
  table->reserve(64, 256, 0);
  const KvShape shape = kv_shape(c.n_kv_heads, c.k_dim, c.v_dim);
  const Sequence sequence(*table.ops, shape, positions.back() + 1, 77);
  const AttentionParams params{c.n_heads, 1.0f / std::sqrt(static_cast<float>(c.k_dim)), c.softcap, c.window};
  std::vector<RowPosition> rows;
  for (const auto position : positions) rows.push_back(sequence.at(position));
  const auto n_rows = static_cast<std::uint32_t>(rows.size());
  const Matrix q = Matrix::random(n_rows, c.n_heads * c.k_dim, 3, 2.0f, 16);
  const Matrix out(n_rows, c.n_heads * c.v_dim, 16);
  table->attention(q, shape, k_layer, params, rows, out);
  EXPECT_TRUE(out.margins_untouched());
  for (std::uint32_t row = 0; row < n_rows; ++row) {
    expect_attention(sequence, shape, params, positions[row], q.at(row), out.at(row));
  }
}

TEST(Attention, MatchesTheFormulaOnEveryIsa) {
  for (const platform::Isa isa : platform::supported_isas()) {
    check_case(isa, {8, 2, 64, 64, 0, 0},
               {0, 1, 14, 15, 16, 17, 62, 63, 64, 65, 254, 255, 256, 257, 300, 511, 512, 700});
  }
}

TEST(Attention, MatchesTheFormulaForUnusualShapes) {
  const platform::Isa isa = platform::choose_isa();
  check_case(isa, {4, 4, 128, 128, 0, 0}, {0, 5, 300});  // No grouping.
  check_case(isa, {6, 1, 40, 24, 0, 0}, {3, 259});       // Dimensions that are no whole vectors.
  check_case(isa, {4, 2, 192, 128, 0, 0}, {7, 270});     // Keys wider than values.
  check_case(isa, {128, 1, 16, 16, 0, 0}, {40});         // A group larger than a tile.
  check_case(isa, {16, 1, 1024, 1024, 0, 0}, {9, 10});   // The widest head.
}

TEST(Attention, SlidesItsWindow) {
  for (const std::uint32_t window : {1u, 2u, 16u, 100u, 256u, 300u, 5000u}) {
    check_case(platform::choose_isa(), {4, 2, 32, 32, window, 0},
               {0, 1, 15, 16, 99, 100, 255, 256, 300, 555, 600});
  }
}

TEST(Attention, CapsScoresSoftly) {
  for (const platform::Isa isa : platform::supported_isas()) {
    check_case(isa, {4, 2, 32, 32, 0, 5.0f}, {0, 20, 300});
    check_case(isa, {4, 2, 32, 32, 64, 50.0f}, {0, 20, 300});
  }
}

TEST(Attention, SurvivesScoresOfAnySize) {
  const Table table(platform::choose_isa());
  table->reserve(4, 64, 0);
  const KvShape shape = kv_shape(1, 16, 16);
  const Sequence sequence(*table.ops, shape, 300, 5);
  for (const float scale : {0.0f, 1e-30f, 1e4f, 1e30f}) {
    const Matrix q = Matrix::random(1, 16, 1), out(1, 16);
    const RowPosition row = sequence.at(299);
    table->attention(q, shape, k_layer, {1, scale, 0, 0}, {&row, 1}, out);
    for (std::uint32_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(std::isfinite(out.at(0)[i]));
      EXPECT_LT(std::abs(out.at(0)[i]), 6.0f);
    }
  }
}

TEST(Attention, DoesNotHideNan) {
  for (const platform::Isa isa : platform::supported_isas()) {
    const Table table(isa);
    table->reserve(4, 64, 0);
    const KvShape shape = kv_shape(1, 16, 16);
    const Sequence sequence(*table.ops, shape, 20, 5);
    for (const float softcap : {0.0f, 10.0f}) {
      const Matrix q = Matrix::random(1, 16, 1), out(1, 16);
      q.at(0)[3] = std::nanf("");
      const RowPosition row = sequence.at(19);
      table->attention(q, shape, k_layer, {1, 0.25f, softcap, 0}, {&row, 1}, out);
      EXPECT_TRUE(std::isnan(out.at(0)[0])) << platform::isa_name(isa);
    }
  }
}

TEST(Attention, StoresKeysAndValuesRoundedToNearest) {
  const Table table(platform::choose_isa());
  const KvShape shape = kv_shape(2, 24, 40);
  const Matrix k = Matrix::random(1, 48, 1), v = Matrix::random(1, 80, 2);
  std::vector<std::uint16_t> page(shape.page_bytes() / 2, 0x1234);
  std::byte* pages[2] = {nullptr, reinterpret_cast<std::byte*>(page.data())};
  const RowPosition row{pages, 64 + 63};
  table->store_kv(k, v, shape, 2, {&row, 1});
  std::vector<std::uint16_t> expected(page.size(), 0x1234);
  const std::size_t k_at = 2 * shape.layer_bytes() / 2, v_at = k_at + shape.k_bytes() / 2;
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t i = 0; i < 24; ++i)
      expected[k_at + (head * 64 + 63) * 24 + i] = f32_to_f16(k.at(0)[head * 24 + i]);
    for (std::size_t i = 0; i < 40; ++i)
      expected[v_at + (head * 64 + 63) * 40 + i] = f32_to_f16(v.at(0)[head * 40 + i]);
  }
  EXPECT_EQ(page, expected);
}

/// One sequence read by a prefill-like batch and rows of other sequences; every row must have the bits it has
/// alone.
void check_independence(platform::Isa isa, const AttentionParams& params, std::uint32_t v_dim,
                        std::uint32_t n_positions, const std::vector<std::uint32_t>& positions) {
  const KvShape shape = kv_shape(2, 64, v_dim);
  const Table one(isa, 1);
  one->reserve(128, 256, 0);
  const Sequence a(*one.ops, shape, n_positions, 10), b(*one.ops, shape, n_positions, 20);
  std::vector<RowPosition> rows;
  for (const auto position : positions) rows.push_back(a.at(position));
  rows.push_back(b.at(n_positions - 1));
  rows.push_back(b.at(n_positions / 2));
  rows.push_back(a.at(n_positions / 3));
  const auto n_rows = static_cast<std::uint32_t>(rows.size());
  const Matrix q = Matrix::random(n_rows, params.n_heads * 64, 30, 1.5f);
  const Matrix expected(n_rows, params.n_heads * v_dim);
  for (std::uint32_t row = 0; row < n_rows; ++row) {
    one->attention(q.rows().from(row).first(1), shape, k_layer, params, std::span(rows).subspan(row, 1),
                   expected.rows().from(row).first(1));
  }
  for (const int n_threads : {1, 2, 4}) {
    const Table table(isa, n_threads);
    table->reserve(128, 256, 0);
    const Matrix together(n_rows, params.n_heads * v_dim), alone(n_rows, params.n_heads * v_dim);
    table->attention(q, shape, k_layer, params, rows, together);
    EXPECT_TRUE(together.same_bits(expected)) << n_threads << " threads, all rows";
    for (std::uint32_t row = 0; row < n_rows; row += 13) {
      table->attention(q.rows().from(row).first(1), shape, k_layer, params, std::span(rows).subspan(row, 1),
                       alone.rows().from(row).first(1));
      EXPECT_EQ(std::memcmp(alone.at(row), expected.at(row), params.n_heads * v_dim * sizeof(float)), 0)
          << n_threads << " threads, row " << row << " alone";
    }
  }
}

TEST(Attention, BitsDoNotDependOnBatchThreadsOrSplit) {
  std::vector<std::uint32_t> prefill(40);
  for (std::uint32_t i = 0; i < prefill.size(); ++i) prefill[i] = 490 + i;
  for (const platform::Isa isa : platform::supported_isas()) {
    check_independence(isa, {8, 0.125f, 0, 0}, 48, 600, prefill);
    check_independence(isa, {8, 0.125f, 20.0f, 300}, 48, 600, prefill);
  }
}

TEST(Attention, LongContextsAreSplitInWavesWithTheSameBits) {
  // 64 queries take 64 * 130 floats per segment, and the partial results hold 4 * n_threads of those: two
  // units have 4 segments at once on two threads and 8 on four, of the 10 that 2500 positions need.
  check_independence(platform::choose_isa(), {128, 0.125f, 0, 0}, 128, 2500, {2499});
  check_independence(platform::choose_isa(), {8, 0.125f, 0, 0}, 48, 2500, {2300, 2499});
}

}  // namespace
}  // namespace sluice::kernels
