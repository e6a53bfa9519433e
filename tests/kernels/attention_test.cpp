// Goal: attention over the paged cache equals the textbook formula, and its bits depend on nothing but the
// row: not on the batch, the threads or the way the work was split.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops_test_support.hpp"
#include "kernels/vector_math.hpp"

namespace sluice::kernels {
namespace {

using test::k_half_ulp;
using test::Matrix;
using test::Table;

constexpr std::uint32_t k_max_rows = 64;

/// A row of a pass.
struct Row {
  std::uint32_t sequence, position;
};

/// Sequences with random keys and values in one region, their pages mixed, as the middle one of three layers;
/// positions not yet written hold NaN.
class Cache {
 public:
  Cache(Ops& ops, const KvShape& shape, std::uint32_t n_positions, const std::vector<std::uint32_t>& seeds)
      : view_{shape, 0, shape.layer_bytes()} {
    const std::uint32_t n_pages = (n_positions + KvShape::page_tokens - 1) / KvShape::page_tokens;
    const auto n_sequences = static_cast<std::uint32_t>(seeds.size());
    storage_.assign(n_pages * n_sequences * page_bytes() / 2, std::uint16_t{0x7e00});
    for (std::uint32_t sequence = 0; sequence < n_sequences; ++sequence) {
      for (std::uint32_t page = 0; page < n_pages; ++page)
        pages_.push_back((n_pages - 1 - page) * n_sequences + sequence);
    }
    for (std::uint32_t sequence = 0; sequence < n_sequences; ++sequence)
      sequences_.push_back({{std::span(pages_).subspan(std::size_t{sequence} * n_pages, n_pages)}, {}});
    for (std::uint32_t sequence = 0; sequence < n_sequences; ++sequence) {
      const std::uint32_t seed = seeds[sequence];
      const Matrix k = Matrix::random(n_positions, shape.n_kv_heads * shape.k_head_dim, seed);
      const Matrix v = Matrix::random(n_positions, shape.n_kv_heads * shape.v_head_dim, seed + 1, 1.0f, 16);
      std::vector<Row> rows;
      for (std::uint32_t position = 0; position < n_positions; ++position)
        rows.push_back({sequence, position});
      // In parts, because passes are limited.
      for (std::uint32_t row = 0; row < n_positions; row += k_max_rows) {
        const std::uint32_t n = std::min(k_max_rows, n_positions - row);
        begin(ops, {rows.begin() + row, rows.begin() + row + n});
        ops.store_kv(k.rows().from(row).first(n), shape.v_in_k ? Rows{} : v.rows().from(row).first(n), view_,
                     0);
      }
    }
  }

  /// Starts a pass of these rows.
  void begin(Ops& ops, const std::vector<Row>& rows) {
    positions_.clear();
    sequence_of_.clear();
    for (const Row& row : rows) {
      positions_.push_back(row.position);
      sequence_of_.push_back(row.sequence);
    }
    region_ = {reinterpret_cast<std::byte*>(storage_.data()), page_bytes()};
    ops.begin_pass({positions_, sequence_of_, sequences_, {&region_, 1}});
  }
  const KvView& view() const { return view_; }
  double key(const Row& row, std::uint32_t head, std::uint32_t i) const {
    return value_at(row, 0, head, i, view_.shape.k_head_dim);
  }
  double value(const Row& row, std::uint32_t head, std::uint32_t i) const {
    return view_.shape.v_in_k ? key(row, head, i)
                              : value_at(row, view_.shape.k_bytes(), head, i, view_.shape.v_head_dim);
  }

 private:
  std::size_t page_bytes() const { return 3 * view_.shape.layer_bytes(); }
  double value_at(const Row& row, std::size_t part, std::uint32_t head, std::uint32_t i,
                  std::uint32_t dim) const {
    const std::size_t page = sequences_[row.sequence].pages[0][row.position / KvShape::page_tokens];
    const std::size_t place = head * std::size_t{KvShape::page_tokens} + row.position % KvShape::page_tokens;
    const auto* at = reinterpret_cast<const std::byte*>(storage_.data()) + page * page_bytes() +
                     view_.offset_bytes + part + place * view_.shape.head_bytes(dim);
    std::uint16_t half = 0;
    if (view_.shape.type == KvType::f16) {
      std::memcpy(&half, at + std::size_t{i} * 2, sizeof half);
      return f16_to_f32(half);
    }
    at += i / k_kv_block * k_kv_block_bytes;
    std::memcpy(&half, at, sizeof half);
    return double{f16_to_f32(half)} * static_cast<std::int8_t>(at[2 + i % k_kv_block]);
  }
  KvView view_;
  std::vector<std::uint16_t> storage_;
  std::vector<std::uint32_t> pages_, positions_, sequence_of_;
  std::vector<SequenceView> sequences_;
  KvRegion region_;
};

/// Checks one output row against double arithmetic with a tolerance from the number of roundings.
void expect_attention(const Cache& cache, const AttentionParams& params, const Row& row, const float* q,
                      const float* out) {
  const KvShape& shape = cache.view().shape;
  const std::uint32_t position = row.position;
  const std::uint32_t group = params.n_heads / shape.n_kv_heads;
  std::uint32_t begin = params.window > 0 && position + 1 > params.window ? position + 1 - params.window : 0;
  if (params.chunk > 0) begin = std::max(begin, position / params.chunk * params.chunk);
  for (std::uint32_t head = 0; head < params.n_heads; ++head) {
    const std::uint32_t kv = head / group;
    std::vector<double> scores;
    double max = -std::numeric_limits<double>::infinity(), score_error = 0;
    for (std::uint32_t p = begin; p <= position; ++p) {
      double dot = 0, magnitude = 0;
      for (std::uint32_t i = 0; i < shape.k_head_dim; ++i) {
        const double term = q[head * shape.k_head_dim + i] * cache.key({row.sequence, p}, kv, i);
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
    if (params.sinks != nullptr) {
      max = std::max(max, double{params.sinks[head]});
      sum = std::exp(params.sinks[head] - max);
    }
    for (double& score : scores) sum += score = std::exp(score - max);
    // A probability carries the errors of its score and of exp; then come the sums over the keys and one
    // merge per segment (two exps and three roundings).
    const auto n = static_cast<double>(scores.size());
    const double relative = 2 * (score_error + 3e-7 + max * k_half_ulp) + (n + n / 256 * 16 + 8) * k_half_ulp;
    for (std::uint32_t i = 0; i < shape.v_head_dim; ++i) {
      double expected = 0, magnitude = 0;
      for (std::uint32_t p = begin; p <= position; ++p) {
        const double term = scores[p - begin] / sum * cache.value({row.sequence, p}, kv, i);
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
  KvType type = KvType::f16;
  bool v_in_k = false;
  std::uint32_t chunk = 0;
  bool sinks = false;
};

void check_case(platform::Isa isa, const Case& c, const std::vector<std::uint32_t>& positions) {
  const Table table(isa, 2);
  table->reserve({k_max_rows, 256, 0});
  Cache cache(*table.ops, {c.n_kv_heads, c.k_dim, c.v_dim, c.type, c.v_in_k}, positions.back() + 1, {77});
  AttentionParams params{c.n_heads, 1.0f / std::sqrt(static_cast<float>(c.k_dim)), c.softcap, c.window};
  params.chunk = c.chunk;
  const Matrix sinks = Matrix::random(1, c.n_heads, 4, 3.0f);
  if (c.sinks) params.sinks = sinks.at(0);
  std::vector<Row> rows;
  for (const auto position : positions) rows.push_back({0, position});
  const auto n_rows = static_cast<std::uint32_t>(rows.size());
  const Matrix q = Matrix::random(n_rows, c.n_heads * c.k_dim, 3, 2.0f, 16);
  const Matrix out(n_rows, c.n_heads * c.v_dim, 16);
  cache.begin(*table.ops, rows);
  table->attention(q, cache.view(), params, 0, out);
  EXPECT_TRUE(out.margins_untouched());
  for (std::uint32_t row = 0; row < n_rows; ++row) {
    expect_attention(cache, params, rows[row], q.at(row), out.at(row));
  }
}

TEST(Attention, MatchesTheFormulaOnEveryIsa) {
  for (const platform::Isa isa : platform::supported_isas()) {
    check_case(isa, {8, 2, 64, 64, 0, 0},
               {0, 1, 14, 15, 16, 17, 62, 63, 64, 65, 254, 255, 256, 257, 300, 511, 512, 700});
  }
}

Case with_sinks(Case one) {
  one.sinks = true;
  return one;
}

TEST(Attention, MatchesTheFormulaWithSinks) {
  for (const platform::Isa isa : platform::supported_isas()) {
    check_case(isa, with_sinks({8, 2, 64, 64, 0, 0}), {0, 1, 63, 64, 255, 256, 257, 600});
    check_case(isa, with_sinks({8, 1, 64, 32, 128, 0}), {0, 127, 128, 300, 700});
  }
  // One row far into a text: its segments are shared by the threads.
  check_case(platform::choose_isa(), with_sinks({2, 1, 64, 64, 0, 0}), {1500});
}

TEST(Attention, MatchesTheFormulaForUnusualShapes) {
  const platform::Isa isa = platform::choose_isa();
  check_case(isa, {4, 4, 128, 128, 0, 0}, {0, 5, 300});  // No grouping.
  check_case(isa, {6, 1, 40, 24, 0, 0}, {3, 259});       // Dimensions that are no whole vectors.
  check_case(isa, {4, 2, 192, 128, 0, 0}, {7, 270});     // Keys wider than values.
  check_case(isa, {128, 1, 16, 16, 0, 0}, {40});         // A group larger than a tile.
  check_case(isa, {16, 1, 1024, 1024, 0, 0}, {9, 10});   // The widest head.
}

TEST(Attention, MatchesTheFormulaOverBlocksOf8Bits) {
  for (const platform::Isa isa : platform::supported_isas()) {
    check_case(isa, {8, 2, 64, 96, 0, 0, KvType::q8_0}, {0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 511, 600});
    check_case(isa, {4, 2, 32, 32, 100, 5.0f, KvType::q8_0}, {0, 20, 300});
  }
  check_case(platform::choose_isa(), {16, 1, 1024, 1024, 0, 0, KvType::q8_0}, {9, 10});
}

TEST(Attention, MatchesTheFormulaWhereValuesArePartsOfKeys) {
  for (const platform::Isa isa : platform::supported_isas()) {
    check_case(isa, {20, 1, 576, 512, 0, 0, KvType::f16, true}, {0, 15, 16, 63, 64, 255, 256, 300});
    check_case(isa, {6, 2, 40, 24, 0, 0, KvType::f16, true}, {3, 259});
    check_case(isa, {4, 1, 96, 64, 0, 0, KvType::q8_0, true}, {0, 20, 300});
  }
}

TEST(Attention, BlocksOf8BitsAreTheSameOnEveryIsaAndCloseToWhatWasStored) {
  const std::size_t n = 256;
  Matrix x = Matrix::random(1, n, 5, 3.0f);
  std::fill_n(x.at(0) + 32, 32, 0.0f);
  for (std::size_t i = 64; i < 96; ++i) x.at(0)[i] *= 1e-7f;  // The scale is subnormal.
  x.at(0)[100] = std::nanf("");
  std::vector<std::byte> expected;
  for (const platform::Isa isa : platform::supported_isas()) {
    const AttentionMath& math = attention_math(isa);
    std::vector<std::byte> blocks(n / k_kv_block * k_kv_block_bytes);
    math.to_q8(x.at(0), blocks.data(), n);
    const Matrix back(1, n);
    math.widen_q8(blocks.data(), 1, n, back.at(0));
    if (expected.empty()) expected = blocks;
    for (std::size_t block = 0; block < n / k_kv_block; ++block) {
      float top = 0;
      for (std::size_t i = 0; i < k_kv_block; ++i)
        top = std::max(top, std::abs(x.at(0)[block * k_kv_block + i]));
      for (std::size_t i = block * k_kv_block; i < (block + 1) * k_kv_block; ++i) {
        if (block == 3) {
          EXPECT_TRUE(std::isnan(back.at(0)[i]));
          continue;
        }
        // Half a step, half an ulp of the scale (subnormal: 2^-25) for each of 127 steps, and roundings.
        const double tolerance = top / 254 * (1 + 1e-5) + 127 * std::max(top / 127 * 0x1p-11, 0x1p-25);
        EXPECT_NEAR(back.at(0)[i], x.at(0)[i], tolerance) << platform::isa_name(isa) << " element " << i;
      }
      if (block == 3) continue;
      EXPECT_EQ(std::memcmp(blocks.data() + block * k_kv_block_bytes,
                            expected.data() + block * k_kv_block_bytes, k_kv_block_bytes),
                0)
          << platform::isa_name(isa) << " block " << block;
    }
  }
}

TEST(Attention, SlidesItsWindow) {
  for (const std::uint32_t window : {1u, 2u, 16u, 100u, 256u, 300u, 5000u}) {
    check_case(platform::choose_isa(), {4, 2, 32, 32, window, 0},
               {0, 1, 15, 16, 99, 100, 255, 256, 300, 555, 600});
  }
}

TEST(Attention, SeesItsChunkOnly) {
  for (const std::uint32_t chunk : {1u, 16u, 100u, 256u, 5000u}) {
    Case one{4, 2, 32, 32, 0, 0};
    one.chunk = chunk;
    check_case(platform::choose_isa(), one, {0, 1, 15, 16, 99, 100, 255, 256, 300, 511, 512, 600});
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
  table->reserve({k_max_rows, 64, 0});
  Cache cache(*table.ops, {1, 16, 16}, 300, {5});
  cache.begin(*table.ops, {{0, 299}});
  for (const float scale : {0.0f, 1e-30f, 1e4f, 1e30f}) {
    const Matrix q = Matrix::random(1, 16, 1), out(1, 16);
    table->attention(q, cache.view(), {1, scale, 0, 0}, 0, out);
    for (std::uint32_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(std::isfinite(out.at(0)[i]));
      EXPECT_LT(std::abs(out.at(0)[i]), 6.0f);
    }
  }
}

TEST(Attention, DoesNotHideNan) {
  for (const platform::Isa isa : platform::supported_isas()) {
    const Table table(isa);
    table->reserve({k_max_rows, 64, 0});
    Cache cache(*table.ops, {1, 16, 16}, 20, {5});
    cache.begin(*table.ops, {{0, 19}});
    for (const float softcap : {0.0f, 10.0f}) {
      const Matrix q = Matrix::random(1, 16, 1), out(1, 16);
      q.at(0)[3] = std::nanf("");
      table->attention(q, cache.view(), {1, 0.25f, softcap, 0}, 0, out);
      EXPECT_TRUE(std::isnan(out.at(0)[0])) << platform::isa_name(isa);
    }
  }
}

TEST(Attention, StoresKeysAndValuesRoundedToNearest) {
  const Table table(platform::choose_isa());
  table->reserve({1, 64, 0});
  const KvShape shape{2, 24, 40};
  // The third of three layers, in the second group, in page 2 of 3, which the sequence has as its second.
  const KvView view{shape, 1, 2 * shape.layer_bytes()};
  const std::size_t page_size = 3 * shape.layer_bytes() / 2;
  const Matrix k = Matrix::random(1, 48, 1), v = Matrix::random(1, 80, 2);
  std::vector<std::uint16_t> memory(3 * page_size, 0x1234);
  const KvRegion regions[2] = {{}, {reinterpret_cast<std::byte*>(memory.data()), page_size * 2}};
  const std::uint32_t pages[2] = {0, 2}, position = 64 + 63, sequence_of = 0;
  const SequenceView sequence{{std::span<const std::uint32_t>(), pages}, {}};
  table->begin_pass({{&position, 1}, {&sequence_of, 1}, {&sequence, 1}, regions});
  table->store_kv(k, v, view, 0);
  std::vector<std::uint16_t> expected(memory.size(), 0x1234);
  const std::size_t k_at = 2 * page_size + 2 * shape.layer_bytes() / 2, v_at = k_at + shape.k_bytes() / 2;
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t i = 0; i < 24; ++i)
      expected[k_at + (head * 64 + 63) * 24 + i] = f32_to_f16(k.at(0)[head * 24 + i]);
    for (std::size_t i = 0; i < 40; ++i)
      expected[v_at + (head * 64 + 63) * 40 + i] = f32_to_f16(v.at(0)[head * 40 + i]);
  }
  EXPECT_EQ(memory, expected);
}

/// One sequence read by a prefill-like batch and rows of other sequences; every row must have the bits it has
/// alone.
void check_independence(platform::Isa isa, const AttentionParams& params, std::uint32_t v_dim,
                        std::uint32_t n_positions, const std::vector<std::uint32_t>& positions,
                        KvType type = KvType::f16, bool v_in_k = false) {
  const Table one(isa, 1);
  one->reserve({k_max_rows, 256, 0});
  Cache cache(*one.ops, {2, 64, v_dim, type, v_in_k}, n_positions, {10, 20});
  std::vector<Row> rows;
  for (const auto position : positions) rows.push_back({0, position});
  rows.push_back({1, n_positions - 1});
  rows.push_back({1, n_positions / 2});
  rows.push_back({0, n_positions / 3});
  const auto n_rows = static_cast<std::uint32_t>(rows.size());
  const Matrix q = Matrix::random(n_rows, params.n_heads * 64, 30, 1.5f);
  const Matrix expected(n_rows, params.n_heads * v_dim);
  for (std::uint32_t row = 0; row < n_rows; ++row) {
    cache.begin(*one.ops, {rows[row]});
    one->attention(q.rows().from(row).first(1), cache.view(), params, 0, expected.rows().from(row).first(1));
  }
  for (const int n_threads : {1, 2, 4}) {
    const Table table(isa, n_threads);
    table->reserve({k_max_rows, 256, 0});
    const Matrix together(n_rows, params.n_heads * v_dim), alone(n_rows, params.n_heads * v_dim);
    cache.begin(*table.ops, rows);
    table->attention(q, cache.view(), params, 0, together);
    EXPECT_TRUE(together.same_bits(expected)) << n_threads << " threads, all rows";
    for (std::uint32_t row = 0; row < n_rows; row += 13) {
      table->attention(q.rows().from(row).first(1), cache.view(), params, row,
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
    check_independence(isa, {8, 0.125f, 20.0f, 300}, 96, 600, prefill, KvType::q8_0);
    check_independence(isa, {8, 0.125f, 0, 0}, 40, 600, prefill, KvType::f16, true);
  }
}

TEST(Attention, LongContextsAreSplitInWavesWithTheSameBits) {
  // 64 queries take 64 * 130 floats per segment, and the partial results hold 4 * n_threads of those: two
  // units have 4 segments at once on two threads and 8 on four, of the 10 that 2500 positions need.
  check_independence(platform::choose_isa(), {128, 0.125f, 0, 0}, 128, 2500, {2499});
  check_independence(platform::choose_isa(), {8, 0.125f, 0, 0}, 48, 2500, {2300, 2499});
  check_independence(platform::choose_isa(), {8, 0.125f, 0, 0}, 48, 2500, {2300, 2499}, KvType::f16, true);
}

}  // namespace
}  // namespace sluice::kernels
