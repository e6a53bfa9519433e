// Goal: routers choose and weigh as their formulas say, with any logits.
#include "kernels/router.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/ops_test_support.hpp"

namespace sluice::kernels {
namespace {

using Scoring = RouterParams::Scoring;
using test::k_half_ulp;
using test::Matrix;
using test::Table;

// Two polynomial exps and a few roundings.
constexpr double k_tolerance = 2 * 3e-7 + 8 * k_half_ulp;

struct Routed {
  std::vector<std::uint16_t> ids;
  std::vector<float> weights;
};

Routed route(const std::vector<float>& logits, const RouterParams& params,
             platform::Isa isa = platform::Isa::scalar) {
  const Table table(isa);
  table->reserve({4, 64, 0});
  Matrix rows(1, static_cast<std::uint32_t>(logits.size()));
  std::copy(logits.begin(), logits.end(), rows.at(0));
  Routed result{std::vector<std::uint16_t>(params.n_used), std::vector<float>(params.n_used)};
  table->route(rows, params, {result.ids, result.weights});
  return result;
}

struct Expected {
  std::vector<std::uint16_t> ids;
  std::vector<double> weights;
};

Expected reference(const std::vector<float>& logits, const RouterParams& params) {
  const std::size_t n = logits.size();
  std::vector<double> p(n);
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::exp(logits[i] - max);
  for (std::size_t i = 0; i < n; ++i) {
    p[i] = params.scoring == Scoring::softmax   ? std::exp(logits[i] - max) / sum
           : params.scoring == Scoring::sigmoid ? 1 / (1 + std::exp(-double{logits[i]}))
                                                : double{logits[i]};
  }
  std::vector<std::uint16_t> order(n);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  const auto key = [&](std::uint16_t i) {
    return p[i] + (params.selection_bias ? params.selection_bias[i] : 0.0f);
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) > key(b); });
  order.resize(params.n_used);
  Expected result{order, {}};
  double selected = 0, selected_exp = 0;
  for (const auto id : order) {
    selected += p[id];
    selected_exp += std::exp(logits[id] - max);
  }
  for (const auto id : order) {
    double weight = p[id];
    if (params.scoring == Scoring::softmax_of_selected) {
      weight = std::exp(logits[id] - max) / selected_exp;
    } else if (params.normalize) {
      weight /= selected;
    }
    result.weights.push_back(weight * params.scale);
  }
  return result;
}

std::vector<float> random_logits(std::uint32_t n, std::uint32_t seed) {
  const Matrix x = Matrix::random(1, n, seed, 2.0f);
  return {x.at(0), x.at(0) + n};
}

TEST(Router, MatchesTheFormulas) {
  const std::vector<float> bias = random_logits(128, 99);
  for (const platform::Isa isa : platform::supported_isas()) {
    for (const Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::softmax_of_selected}) {
      for (const bool normalize : {true, false}) {
        for (const bool biased : {false, true}) {
          const RouterParams params{8, scoring, normalize, 2.5f, biased ? bias.data() : nullptr};
          const auto logits = random_logits(128, static_cast<std::uint32_t>(scoring) + 7);
          const Routed got = route(logits, params, isa);
          const Expected expected = reference(logits, params);
          EXPECT_EQ(got.ids, expected.ids);
          for (std::size_t i = 0; i < 8; ++i) {
            EXPECT_NEAR(got.weights[i], expected.weights[i], expected.weights[i] * k_tolerance);
          }
        }
      }
    }
  }
}

TEST(Router, ChoosesWithinTheBestGroups) {
  // Groups (4, 0), (3, 2), (1, 3): the first has the best expert, the second the best two.
  const std::vector<float> logits = {4, 0, 3, 2, 1, 3};
  RouterParams params{2, Scoring::softmax};
  params.n_groups = 3;
  params.n_groups_used = 1;
  EXPECT_EQ(route(logits, params).ids, (std::vector<std::uint16_t>{0, 1}));
  params.n_group_best = 2;
  params.scoring = Scoring::softmax_of_selected;
  EXPECT_EQ(route(logits, params).ids, (std::vector<std::uint16_t>{2, 3}));
  params.n_groups_used = 2;
  EXPECT_EQ(route(logits, params).ids, (std::vector<std::uint16_t>{0, 2}));
  params.n_groups_used = 3;
  EXPECT_EQ(route(logits, params).ids, (std::vector<std::uint16_t>{0, 2}));
  // Biases count, and equal groups go by rising id.
  const std::vector<float> bias = {-4, 0, 0, 0, 0, 0};
  params.selection_bias = bias.data();
  params.n_groups_used = 1;
  params.n_group_best = 1;
  EXPECT_EQ(route(logits, params).ids, (std::vector<std::uint16_t>{2, 3}));
}

TEST(Router, TiesGoToTheLowerId) {
  const Routed got = route({1, 3, 3, 0, 3, 1}, {4});
  EXPECT_EQ(got.ids, (std::vector<std::uint16_t>{1, 2, 4, 0}));
  EXPECT_EQ(got.weights[0], got.weights[1]);
}

TEST(Router, WeightsSumToTheScaleWhenNormalized) {
  const Routed got = route(random_logits(64, 3), {6, Scoring::softmax, true, 1.0f, nullptr});
  EXPECT_NEAR(std::accumulate(got.weights.begin(), got.weights.end(), 0.0), 1.0, 6 * 2 * k_half_ulp);
  EXPECT_TRUE(std::is_sorted(got.weights.rbegin(), got.weights.rend()));
}

TEST(Router, SelectionBiasChangesTheChoiceNotTheWeights) {
  const std::vector<float> bias = {0, 0, 0, 10};
  const Routed got = route({2, 1, 0, -1}, {2, Scoring::sigmoid, false, 1.0f, bias.data()});
  EXPECT_EQ(got.ids, (std::vector<std::uint16_t>{3, 0}));
  EXPECT_NEAR(got.weights[0], 1 / (1 + std::exp(1.0)), k_tolerance);
}

TEST(Router, UsesAllExpertsWhenAskedTo) {
  const Routed got = route({0, 2, 1}, {3});
  EXPECT_EQ(got.ids, (std::vector<std::uint16_t>{1, 2, 0}));
}

TEST(Router, NanCountsAsLowest) {
  const float nan = std::nanf("");
  for (const Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::softmax_of_selected}) {
    const Routed got = route({nan, -50, nan, -60}, {3, scoring, true, 1.0f, nullptr});
    EXPECT_EQ(got.ids, (std::vector<std::uint16_t>{1, 3, 0}));
    for (const float weight : got.weights) EXPECT_TRUE(std::isfinite(weight));
    const Routed none = route({nan, nan, nan}, {2, scoring, true, 1.0f, nullptr});
    EXPECT_EQ(none.ids, (std::vector<std::uint16_t>{0, 1}));
    for (const float weight : none.weights) EXPECT_EQ(weight, 0.0f);
  }
}

TEST(Router, InfiniteLogitsTakeAllTheWeight) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Routed got = route({0, infinity, -infinity, 5}, {2});
  EXPECT_EQ(got.ids, (std::vector<std::uint16_t>{1, 0}));
  EXPECT_EQ(got.weights, (std::vector<float>{1, 0}));
}

TEST(Router, RowsDoNotInfluenceEachOtherOnAnyNumberOfThreads) {
  const Matrix logits = Matrix::random(300, 128, 1, 2.0f);
  const RouterParams params{8};
  Routed first;
  for (const int n_threads : {1, 2, 4}) {
    const Table table(platform::choose_isa(), n_threads);
    table->reserve({300, 64, 0});
    Routed all{std::vector<std::uint16_t>(300 * 8), std::vector<float>(300 * 8)};
    table->route(logits, params, {all.ids, all.weights});
    if (n_threads == 1) first = all;
    EXPECT_EQ(all.ids, first.ids);
    EXPECT_EQ(all.weights, first.weights);
    Routed one{std::vector<std::uint16_t>(8), std::vector<float>(8)};
    for (std::uint32_t row = 0; row < 300; row += 37) {
      table->route(logits.rows().from(row).first(1), params, {one.ids, one.weights});
      EXPECT_TRUE(std::equal(one.ids.begin(), one.ids.end(), first.ids.begin() + row * 8));
      EXPECT_TRUE(std::equal(one.weights.begin(), one.weights.end(), first.weights.begin() + row * 8));
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
