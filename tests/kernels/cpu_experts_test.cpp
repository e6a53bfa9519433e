// Goal: the expert stage computes what its definition says, and the bits do not depend on how calls are
// grouped, ordered or shared among threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/dot_test_support.hpp"

namespace sluice::kernels {
namespace {

using test::dot;
using test::Dot;
using test::dot_tolerance;
using test::Experts;
using test::Matrix;
using test::seen_by;
using test::Table;

TEST(CpuExperts, ExpertsMatchDouble) {
  const std::uint32_t n_rows = 5;
  const Experts experts(6, n_rows);
  for (const platform::Isa isa : platform::supported_isas()) {
    const Table table(isa, 2);
    table->reserve({n_rows, Experts::n_embd, Experts::n_ff});
    const Matrix x = Matrix::random(n_rows, Experts::n_embd, 1, 1.0f, 16);
    const Matrix out(n_rows * Experts::n_used, Experts::n_embd, 16);
    table->begin_experts(x, Activation::silu);
    table->run_experts(experts.calls(), out);
    EXPECT_TRUE(out.margins_untouched());
    for (std::uint32_t e = 0; e < 6; ++e) {
      for (std::size_t i = 0; i < experts.in[e].size(); ++i) {
        const float* row = x.at(experts.in[e][i]);
        const auto for_gate = seen_by(experts.gate[e].weight().type, isa, row, Experts::n_embd);
        const auto for_up = seen_by(experts.up[e].weight().type, isa, row, Experts::n_embd);
        std::vector<double> hidden(Experts::n_ff), errors(Experts::n_ff);
        double largest = 0;
        for (std::uint32_t j = 0; j < Experts::n_ff; ++j) {
          Dot g = dot(experts.gate[e].row(j), for_gate), u = dot(experts.up[e].row(j), for_up);
          if (e % 2 == 1) {
            g.add(experts.bias.at(0)[j]);
            u.add(experts.bias.at(1)[j]);
          }
          const double silu = g.value / (1 + std::exp(-g.value));
          hidden[j] = silu * u.value;
          // |silu'| < 1.1.
          errors[j] = 1.1 * dot_tolerance(g, Experts::n_embd) * std::abs(u.value) +
                      std::abs(silu) * dot_tolerance(u, Experts::n_embd) + std::abs(hidden[j]) * 1e-6;
          largest = std::max(largest, std::abs(hidden[j]));
        }
        // The hidden row is quantized from values that differ in the last bits from ours: where a value lies
        // near the middle of two steps of (at most) largest / 127 it may fall to the other side, so half a
        // step each.
        const bool is_plain =
            find_gemm(experts.down[e].weight().type, isa).activation == ActivationFormat::f32;
        for (std::uint32_t j = 0; j < Experts::n_ff; ++j) errors[j] += is_plain ? 0 : largest / 127 * 0.51;
        for (std::uint32_t c = 0; c < Experts::n_embd; c += 17) {
          const auto w = experts.down[e].row(c);
          Dot expected = dot(w, hidden);
          if (e % 2 == 1) expected.add(experts.bias.at(2)[c]);
          double tolerance = dot_tolerance(expected, Experts::n_ff);
          for (std::uint32_t j = 0; j < Experts::n_ff; ++j) tolerance += std::abs(w[j]) * errors[j];
          ASSERT_NEAR(out.at(experts.out[e][i])[c], expected.value, tolerance) << "expert " << e;
        }
      }
    }
  }
}

TEST(CpuExperts, ExpertBitsDoNotDependOnGroupingOrderRowsOrThreads) {
  const std::uint32_t n_rows = 200;  // More hidden rows (600) than one wave holds.
  const Experts experts(7, n_rows);
  const Matrix x = Matrix::random(n_rows, Experts::n_embd, 1);
  const Matrix expected(n_rows * Experts::n_used, Experts::n_embd);
  {
    const Table table(platform::choose_isa());
    table->reserve({n_rows, Experts::n_embd, Experts::n_ff});
    table->begin_experts(x, Activation::silu);
    for (std::uint32_t e = 0; e < 7; ++e) {  // Row by row.
      for (std::size_t i = 0; i < experts.in[e].size(); ++i) {
        ExpertCall call = experts.call(e);
        call.in_rows = call.in_rows.subspan(i, 1);
        call.out_rows = call.out_rows.subspan(i, 1);
        table->run_experts({&call, 1}, expected);
      }
    }
  }
  for (const int n_threads : {1, 2, 4}) {
    const Table table(platform::choose_isa(), n_threads);
    table->reserve({n_rows, Experts::n_embd, Experts::n_ff});
    const Matrix all(n_rows * Experts::n_used, Experts::n_embd),
        turned(n_rows * Experts::n_used, Experts::n_embd);
    auto calls = experts.calls();
    table->begin_experts(x, Activation::silu);
    table->run_experts(calls, all);
    EXPECT_TRUE(all.same_bits(expected)) << n_threads;
    // One by one in the other order, with products of another input in between.
    std::reverse(calls.begin(), calls.end());
    const Matrix other = Matrix::random(3, Experts::n_embd, 5), y(3, Experts::n_ff);
    const Product product{experts.gate[0], y, nullptr};
    for (const ExpertCall& call : calls) {
      table->run_experts({&call, 1}, turned);
      table->matmul(other, {&product, 1});
    }
    EXPECT_TRUE(turned.same_bits(expected)) << n_threads;
  }
}

TEST(CpuExperts, ExpertsTakeMoreCallsThanOneWaveHolds) {
  const Experts experts(1, 1);
  const Table table(platform::choose_isa(), 2);
  table->reserve({2, Experts::n_embd, Experts::n_ff});
  const Matrix x = Matrix::random(2, Experts::n_embd, 1), out(600, Experts::n_embd);
  std::vector<std::uint32_t> in_rows(600), out_rows(600);
  for (std::uint32_t i = 0; i < 600; ++i) {
    in_rows[i] = i % 3 == 0 ? 1 : 0;
    out_rows[i] = 599 - i;
  }
  std::vector<ExpertCall> calls;
  // 300 calls of one row, then one call of 300 rows, longer than a wave's 64.
  for (std::uint32_t i = 0; i < 300; ++i) {
    calls.push_back({experts.gate[0], experts.up[0], experts.down[0], std::span(in_rows).subspan(i, 1),
                     std::span(out_rows).subspan(i, 1)});
  }
  calls.push_back({experts.gate[0], experts.up[0], experts.down[0], std::span(in_rows).subspan(300),
                   std::span(out_rows).subspan(300)});
  table->begin_experts(x, Activation::silu);
  table->run_experts(calls, out);
  for (std::uint32_t i = 0; i < 600; ++i) {
    const std::uint32_t first_with_same_input = in_rows[i] == 1 ? 599 : 598;
    ASSERT_EQ(
        std::memcmp(out.at(out_rows[i]), out.at(first_with_same_input), Experts::n_embd * sizeof(float)), 0)
        << i;
  }
  EXPECT_NE(std::memcmp(out.at(599), out.at(598), Experts::n_embd * sizeof(float)), 0);
}

}  // namespace
}  // namespace sluice::kernels
