// Goal: rotations follow the published formulas in both pair orders and with every length extension.
#include "kernels/rope.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "kernels/ops_test_support.hpp"

namespace sluice::kernels {
namespace {

using test::k_half_ulp;
using test::Matrix;
using test::Table;

/// Angle and magnitude of a pair, written down from the papers a second time.
struct Turn {
  double angle, magnitude;
};
Turn expected_turn(const RopeParams& params, std::uint32_t pair, std::uint32_t position) {
  const double theta = std::pow(double{params.base}, -2.0 * pair / params.n_rot) /
                       (params.freq_factors ? params.freq_factors[pair] : 1.0f);
  if (params.ext_factor == 0) return {position * theta * params.freq_scale, params.attn_factor};
  // Peng et al.: the pair turns r = L * theta / 2 pi times within the original context of L tokens. The
  // bounds are pair indices, rounded outwards, as the GGUF ecosystem does.
  const auto index_of = [&](double turns) {
    return params.n_rot * std::log(params.n_ctx_orig / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(double{params.base}));
  };
  const double low = std::max(std::floor(index_of(params.beta_fast)), 0.0);
  const double high = std::min(std::ceil(index_of(params.beta_slow)), params.n_rot - 1.0);
  const double gamma = 1 - std::min(1.0, std::max(0.0, (pair - low) / std::max(0.001, high - low)));
  const double scaled = theta * params.freq_scale;
  const double mix = gamma * params.ext_factor;
  return {position * ((1 - mix) * scaled + mix * theta),
          params.attn_factor * (1 + 0.1 * std::log(1.0 / params.freq_scale))};
}

/// Rotates x by a curve, row i as at positions[i].
void rotate(Ops& ops, const Matrix& x, std::uint32_t head_dim, const RopeParams& params,
            const std::vector<std::uint32_t>& positions) {
  const std::vector<std::uint32_t> sequence_of(positions.size(), 0);
  ops.reserve({x.n_rows(), 64, 0, params.n_rot});
  ops.set_curves({&params, 1});
  ops.begin_pass({positions, sequence_of, {}, {}});
  ops.rope(x, head_dim, 0, 0);
}

void expect_rotated(const RopeParams& params, std::uint32_t head_dim, platform::Isa isa) {
  const std::vector<std::uint32_t> positions = {0, 1, 2, 63, 1000, 31'000, 131'071};
  const auto n_rows = static_cast<std::uint32_t>(positions.size());
  const Matrix before = Matrix::random(n_rows, 3 * head_dim, 4, 1.0f, 16);
  const Matrix x = before.copy();
  const Table table(isa);
  rotate(*table.ops, x, head_dim, params, positions);
  EXPECT_TRUE(x.margins_untouched());
  for (std::uint32_t row = 0; row < n_rows; ++row) {
    for (std::uint32_t head = 0; head < 3; ++head) {
      const float* in = before.at(row) + head * head_dim;
      const float* out = x.at(row) + head * head_dim;
      for (std::uint32_t pair = 0; pair < params.n_rot / 2; ++pair) {
        const std::uint32_t i = params.neox ? pair : 2 * pair;
        const std::uint32_t j = params.neox ? pair + params.n_rot / 2 : 2 * pair + 1;
        const Turn turn = expected_turn(params, pair, positions[row]);
        const double c = std::cos(turn.angle) * turn.magnitude, s = std::sin(turn.angle) * turn.magnitude;
        // Angles are exact to double; sine, two products and a sum are rounded to float.
        const double tolerance = (std::abs(in[i]) + std::abs(in[j])) * turn.magnitude *
                                 (4 * k_half_ulp + std::abs(turn.angle) * 0x1p-50);
        ASSERT_NEAR(out[i], in[i] * c - in[j] * s, tolerance) << "pair " << pair << " at " << positions[row];
        ASSERT_NEAR(out[j], in[i] * s + in[j] * c, tolerance) << "pair " << pair << " at " << positions[row];
      }
      for (std::uint32_t i = params.n_rot; i < head_dim; ++i) ASSERT_EQ(out[i], in[i]);
    }
  }
}

TEST(Rope, RotatesPairsInBothOrders) {
  for (const platform::Isa isa : platform::supported_isas()) {
    for (const bool neox : {false, true}) {
      for (const std::uint32_t n_rot : {2u, 6u, 20u, 64u, 128u}) {
        RopeParams params;
        params.n_rot = n_rot;
        params.neox = neox;
        expect_rotated(params, 128, isa);
      }
    }
  }
}

TEST(Rope, ScalesLinearly) {
  RopeParams params;
  params.n_rot = 64;
  params.freq_scale = 0.25f;
  params.base = 500'000.0f;
  expect_rotated(params, 64, platform::choose_isa());
}

TEST(Rope, DividesByFrequencyFactors) {
  std::vector<float> factors(32);
  for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0f + static_cast<float>(i) * 0.25f;
  RopeParams params;
  params.n_rot = 64;
  params.freq_factors = factors.data();
  expect_rotated(params, 64, platform::choose_isa());
}

TEST(Rope, FollowsYarn) {
  RopeParams params;
  params.n_rot = 128;
  params.neox = true;
  params.base = 1'000'000.0f;
  params.freq_scale = 0.25f;
  params.ext_factor = 1.0f;
  params.attn_factor = 1.1f;
  params.n_ctx_orig = 32'768;
  expect_rotated(params, 128, platform::choose_isa());
}

TEST(Rope, YarnKeepsFastPairsAndInterpolatesSlowOnes) {
  RopeParams params;
  params.n_rot = 128;
  params.freq_scale = 0.25f;
  params.ext_factor = 1.0f;
  params.n_ctx_orig = 4096;
  std::vector<double> frequencies(64);
  const double magnitude = rope_frequencies(params, frequencies);
  EXPECT_DOUBLE_EQ(frequencies.front(), 1.0);
  EXPECT_DOUBLE_EQ(frequencies.back(), std::pow(10'000.0, -126.0 / 128.0) / 4);
  EXPECT_NEAR(magnitude, 1 + 0.1 * std::log(4.0), 1e-7);
}

TEST(Rope, TwoCurvesAndAnyRowsOfAPassKeepTheirSines) {
  const platform::Isa isa = platform::choose_isa();
  std::vector<float> factors(16, 1.0f);
  factors[3] = 2.0f;
  RopeParams near, far;
  near.n_rot = 32;
  near.freq_factors = factors.data();
  far.n_rot = 16;
  far.base = 1e6f;
  far.neox = true;
  const RopeParams curves[] = {near, far};
  const Table table(isa);
  table->reserve({4, 64, 0, 48});
  table->set_curves(curves);
  factors.assign(16, 5.0f);  // They were copied.
  for (const std::uint32_t start : {5u, 6u, 100u}) {
    const std::vector<std::uint32_t> positions = {start, start + 1, 7, start}, sequence_of(4, 0);
    table->begin_pass({positions, sequence_of, {}, {}});
    for (const std::uint32_t curve : {0u, 1u, 0u, 1u}) {
      for (std::uint32_t first = 0; first < 4; ++first) {
        const Matrix x = Matrix::random(4 - first, 96, 8 + first), expected = x.copy();
        table->rope(x, 32, curve, first);
        const Table alone(isa);
        RopeParams params = curves[curve];
        std::vector<float> its_factors(16, 1.0f);
        its_factors[3] = 2.0f;
        if (curve == 0) params.freq_factors = its_factors.data();
        rotate(*alone.ops, expected, 32, params, {positions.begin() + first, positions.end()});
        EXPECT_TRUE(x.same_bits(expected)) << "curve " << curve << " from row " << first << " at " << start;
      }
    }
  }
}

TEST(Rope, RowsDoNotInfluenceEachOtherOnAnyNumberOfThreads) {
  RopeParams params;
  params.n_rot = 1024;
  std::vector<std::uint32_t> positions;
  for (std::uint32_t i = 0; i < 70; ++i) positions.push_back(i * 31);
  const Matrix input = Matrix::random(70, 2048, 5);
  const Matrix first = input.copy();
  for (const int n_threads : {1, 2, 4}) {
    const Table table(platform::choose_isa(), n_threads);
    const Matrix x = input.copy();
    rotate(*table.ops, x, 1024, params, positions);
    if (n_threads == 1) std::memcpy(first.at(0), x.at(0), 70 * 2048 * sizeof(float));
    EXPECT_TRUE(x.same_bits(first)) << n_threads;
    for (std::uint32_t row = 0; row < 70; row += 23) {
      const Matrix one(1, 2048);
      std::copy_n(input.at(row), 2048, one.at(0));
      rotate(*table.ops, one, 1024, params, {positions[row]});
      EXPECT_EQ(std::memcmp(one.at(0), first.at(row), 2048 * sizeof(float)), 0) << row;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
