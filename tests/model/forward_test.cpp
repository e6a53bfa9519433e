// Goal: the forward graph computes what the architecture means. Method: tiny random F32 models of every
// architecture and option against an independent double-precision computation that shares no code with the
// graph.
#include "model/forward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sluice/sluice.hpp"
#include "support/reference_model.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

std::vector<TokenId> some_tokens(std::size_t n) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>((i * 37 + i * i * 11) % 256));
  return tokens;
}

void expect_reference(const test::TinyModel& tiny) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), tiny);
  const std::vector<TokenId> tokens = some_tokens(40);
  const auto expected = test::reference_logits(path, tokens);
  OpenOptions options;
  options.n_threads = 2;
  Model model = Model::open(path, options);
  Sequence sequence = model.new_sequence();
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  std::size_t n_rows = 0;
  model.step({&item, 1}, [&](std::size_t, std::size_t row, std::span<const float> logits) {
    ++n_rows;
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, std::abs(expected[row][i]));
      error = std::max(error, std::abs(logits[i] - expected[row][i]));
    }
    // Only K and V are rounded, to f16: 2^-11 each. An attention layer passes that on to its output, layers
    // add up, and a factor of 4 covers the norms' gains.
    const double tolerance = 4 * tiny.n_layers * std::ldexp(1.0, -11) * largest;
    EXPECT_LT(error, tolerance) << tiny.architecture << " row " << row << " largest logit " << largest;
  });
  EXPECT_EQ(n_rows, tokens.size());
}

test::TinyModel tiny(const char* architecture, std::uint32_t n_experts) {
  test::TinyModel model;
  model.architecture = architecture;
  model.n_experts = n_experts;
  return model;
}

TEST(Forward, MatchesTheReferenceForLlama) {
  expect_reference(tiny("llama", 0));
}
TEST(Forward, MatchesTheReferenceForMixtral) {
  expect_reference(tiny("llama", 8));
}
TEST(Forward, MatchesTheReferenceForQwen2) {
  expect_reference(tiny("qwen2", 0));
}
TEST(Forward, MatchesTheReferenceForQwen3) {
  expect_reference(tiny("qwen3", 0));
}
TEST(Forward, MatchesTheReferenceForQwen3Moe) {
  expect_reference(tiny("qwen3moe", 8));
}

TEST(Forward, MatchesTheReferenceForSplitExperts) {
  test::TinyModel model = tiny("llama", 8);
  model.split_experts = true;
  expect_reference(model);
}

TEST(Forward, MatchesTheReferenceForTiedOutputAndOneKvHead) {
  test::TinyModel model = tiny("qwen3", 0);
  model.tied_output = true;
  model.n_kv_heads = 1;
  expect_reference(model);
}

TEST(Forward, MatchesTheReferenceForRopeScalings) {
  for (const char* scaling : {"linear", "yarn"}) {
    test::TinyModel model = tiny("qwen2", 0);
    model.rope_scaling = scaling;
    expect_reference(model);
  }
  test::TinyModel model = tiny("llama", 0);
  model.rope_freqs = true;
  expect_reference(model);
}

}  // namespace
}  // namespace sluice
