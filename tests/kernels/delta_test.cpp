// Goal: the gated delta rule computes its formula on every instruction set, and gives the same bits however
// its rows are cut into runs, passes and threads. Method: a reference in double, row by row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/ops_test_support.hpp"
#include "support/reference_delta.hpp"

namespace sluice::kernels {
namespace {

using kernels::test::Matrix;
using kernels::test::Table;

constexpr float k_eps = 1e-6f;

DeltaShape shape_of(DeltaShape::Order order, std::uint32_t head_dim, std::uint32_t n_taps) {
  DeltaShape shape;
  shape.n_k_heads = 2;
  shape.n_v_heads = 6;
  shape.head_dim = head_dim;
  shape.n_taps = n_taps;
  shape.order = order;
  return shape;
}

/// Weights, projected rows and what a double computation makes of them.
class Problem {
 public:
  Problem(const DeltaShape& shape_given, std::uint32_t n_rows)
      : shape(shape_given),
        in(Matrix::random(n_rows, shape.n_columns(), 5, 1.0f, 7)),
        convolution_(Matrix::random(shape.n_channels(), shape.n_taps, 6, 0.5f)),
        dt_bias_(Matrix::random(1, shape.n_v_heads, 7)),
        a_(Matrix::random(1, shape.n_v_heads, 8)) {
    for (std::uint32_t head = 0; head < shape.n_v_heads; ++head) a_.at(0)[head] = -std::exp(a_.at(0)[head]);
    weights = {convolution_.at(0), dt_bias_.at(0), a_.at(0)};
  }

  std::vector<std::vector<double>> reference() const {
    sluice::test::ReferenceDelta delta;
    delta.n_k_heads = shape.n_k_heads;
    delta.n_v_heads = shape.n_v_heads;
    delta.head_dim = shape.head_dim;
    delta.is_grouped = shape.order == DeltaShape::Order::grouped;
    for (std::uint32_t c = 0; c < shape.n_channels(); ++c)
      delta.convolution.push_back(doubles(convolution_.at(c), shape.n_taps));
    delta.dt_bias = doubles(dt_bias_.at(0), shape.n_v_heads);
    delta.a = doubles(a_.at(0), shape.n_v_heads);
    std::vector<sluice::test::ReferenceDelta::Row> rows;
    const std::uint32_t r = shape.n_v_heads / shape.n_k_heads;
    for (std::uint32_t row = 0; row < in.n_rows(); ++row) {
      const float* gates = in.at(row) + shape.n_channels();
      auto& to = rows.emplace_back();
      to.qkv = doubles(in.at(row), shape.n_channels());
      for (std::uint32_t head = 0; head < shape.n_v_heads; ++head) {
        const float* of_k_head = gates + head / r * 2 * r + head % r;
        to.beta.push_back(delta.is_grouped ? of_k_head[0] : gates[head]);
        to.alpha.push_back(delta.is_grouped ? of_k_head[r] : gates[shape.n_v_heads + head]);
      }
    }
    return delta.run(rows);
  }

  DeltaShape shape;
  Matrix in;
  DeltaWeights weights;

 private:
  static std::vector<double> doubles(const float* values, std::size_t n) { return {values, values + n}; }
  Matrix convolution_, dt_bias_, a_;
};

std::vector<float> new_state(const DeltaShape& shape) {
  return std::vector<float>(shape.n_state_floats(), 1e30f);  // Must be written before it is read.
}

/// All rows, cut into passes of the given sizes.
Matrix in_passes(Table& table, const Problem& problem, std::vector<std::uint32_t> sizes, bool in_place) {
  const DeltaShape& shape = problem.shape;
  Matrix y(problem.in.n_rows(), shape.v_dim());
  std::vector<float> states[2] = {new_state(shape), new_state(shape)};
  const float* from = nullptr;
  std::uint32_t row = 0, n_passes = 0;
  for (const std::uint32_t n : sizes) {
    Matrix work(n, shape.n_columns());
    float* const to = states[in_place ? 0 : n_passes++ % 2].data();
    const DeltaRun run{0, n, from, to, nullptr};
    table->delta_rule(problem.in.rows().from(row).first(n), shape, problem.weights, k_eps, {&run, 1}, work,
                      y.rows().from(row).first(n));
    from = to;
    row += n;
  }
  EXPECT_EQ(row, problem.in.n_rows());
  return y;
}

TEST(DeltaRule, ComputesItsFormula) {
  for (const auto order : {DeltaShape::Order::tiled, DeltaShape::Order::grouped}) {
    for (const std::uint32_t n_taps : {2u, 4u, 5u}) {
      const Problem problem(shape_of(order, 32, n_taps), 40);
      const auto expected = problem.reference();
      for (const platform::Isa isa : platform::supported_isas()) {
        Table table(isa);
        const Matrix y = in_passes(table, problem, {40}, false);
        for (std::uint32_t row = 0; row < y.n_rows(); ++row) {
          for (std::uint32_t i = 0; i < y.n_cols(); ++i) {
            // Some hundred roundings of numbers of about one, and those of the states before, which decay.
            EXPECT_NEAR(y.at(row)[i], expected[row][i], 2e-5) << platform::isa_name(isa) << " row " << row;
          }
        }
      }
    }
  }
}

TEST(DeltaRule, GivesTheSameBitsHoweverRowsAreCut) {
  const Problem problem(shape_of(DeltaShape::Order::tiled, 64, 4), 24);
  for (const platform::Isa isa : platform::supported_isas()) {
    Table table(isa), threads(isa, 4);
    const Matrix whole = in_passes(table, problem, {24}, false);
    const std::vector<std::uint32_t> single(24, 1);
    for (const bool in_place : {false, true}) {
      EXPECT_TRUE(in_passes(table, problem, single, in_place).same_bits(whole)) << platform::isa_name(isa);
      EXPECT_TRUE(in_passes(threads, problem, {1, 2, 3, 7, 11}, in_place).same_bits(whole))
          << platform::isa_name(isa);
    }
  }
}

TEST(DeltaRule, RunsOfOnePassDoNotSeeOneAnother) {
  const Problem problem(shape_of(DeltaShape::Order::grouped, 32, 4), 30);
  const DeltaShape& shape = problem.shape;
  for (const platform::Isa isa : platform::supported_isas()) {
    Table table(isa, 2);
    std::vector<std::vector<float>> states(3, new_state(shape)), alone(3, new_state(shape));
    const std::uint32_t sizes[] = {11, 1, 18};
    std::vector<DeltaRun> runs;
    for (std::uint32_t i = 0, row = 0; i < 3; row += sizes[i++])
      runs.push_back({row, sizes[i], nullptr, states[i].data(), nullptr});
    Matrix work(30, shape.n_columns()), y(30, shape.v_dim());
    table->delta_rule(problem.in, shape, problem.weights, k_eps, runs, work, y);
    for (std::uint32_t i = 0; i < 3; ++i) {
      Matrix own(sizes[i], shape.v_dim());
      const DeltaRun run{0, sizes[i], nullptr, alone[i].data(), nullptr};
      table->delta_rule(problem.in.rows().from(runs[i].first_row).first(sizes[i]), shape, problem.weights,
                        k_eps, {&run, 1}, work.rows().first(sizes[i]), own);
      for (std::uint32_t row = 0; row < sizes[i]; ++row) {
        EXPECT_EQ(std::memcmp(own.at(row), y.at(runs[i].first_row + row), shape.v_dim() * sizeof(float)), 0)
            << platform::isa_name(isa);
      }
      EXPECT_EQ(states[i], alone[i]);
    }
  }
}

TEST(DeltaRule, TheLogMakesTheStateAgain) {
  const Problem problem(shape_of(DeltaShape::Order::tiled, 32, 4), 12);
  const DeltaShape& shape = problem.shape;
  Table table(platform::supported_isas().back());
  std::vector<float> before = new_state(shape), after = new_state(shape), again = new_state(shape);
  Matrix work(12, shape.n_columns()), y(12, shape.v_dim()), log(12, shape.n_columns());
  const DeltaRun first{0, 5, nullptr, before.data(), nullptr};
  table->delta_rule(problem.in.rows().first(5), shape, problem.weights, k_eps, {&first, 1},
                    work.rows().first(5), y.rows().first(5));
  const DeltaRun second{0, 7, before.data(), after.data(), log.at(0)};
  table->delta_rule(problem.in.rows().from(5), shape, problem.weights, k_eps, {&second, 1},
                    work.rows().first(7), y.rows().first(7));
  const DeltaRun replay{0, 7, before.data(), again.data(), nullptr};
  table->delta_rule(log.rows().first(7), shape, problem.weights, k_eps, {&replay, 1}, work.rows().first(7),
                    {});
  EXPECT_EQ(again, after);
}

TEST(Gates, SplitHeadsAndScaleByTheLogisticFunction) {
  const Matrix both = Matrix::random(5, 3 * 2 * 24, 3);
  for (const platform::Isa isa : platform::supported_isas()) {
    Table table(isa);
    Matrix x(5, 72, 3), gates(5, 72);
    table->split_heads(both, 24, x, gates);
    const Matrix before = x.copy();
    table->gate(x, gates);
    for (std::uint32_t row = 0; row < 5; ++row) {
      for (std::uint32_t i = 0; i < 72; ++i) {
        const float* head = both.at(row) + i / 24 * 48 + i % 24;
        EXPECT_EQ(before.at(row)[i], head[0]);
        EXPECT_NEAR(x.at(row)[i], double{head[0]} / (1 + std::exp(-double{head[24]})), 1e-5);
      }
    }
    EXPECT_TRUE(x.margins_untouched());
  }
}

}  // namespace
}  // namespace sluice::kernels
