// Goal: the forward graph computes what the architecture means. Method: tiny random F32 models of every
// known architecture and option against an independent double-precision computation that shares no code with
// the graph.
#include "model/forward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/architecture.hpp"
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
  options.prefill_chunk = static_cast<std::uint32_t>(tokens.size());  // The pass takes all that was counted.
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

TEST(Forward, MatchesTheReferenceForEveryArchitecture) {
  for (const model::Architecture& architecture : model::known_architectures())
    expect_reference(test::tiny_model_of(architecture.name));
}

TEST(Forward, MatchesTheReferenceWithoutOptionalTensors) {
  for (const model::Architecture& architecture : model::known_architectures()) {
    test::TinyModel model = test::tiny_model_of(architecture.name);
    model.optional_tensors = false;
    expect_reference(model);
  }
}

TEST(Forward, MatchesTheReferenceWithSecondScales) {
  for (const model::Architecture& architecture : model::known_architectures()) {
    test::TinyModel model = test::tiny_model_of(architecture.name);
    model.second_scales = true;
    expect_reference(model);
  }
}

TEST(Forward, MatchesTheReferenceWhenPartOfAHeadRotates) {
  for (const model::Architecture& architecture : model::known_architectures()) {
    test::TinyModel model = test::tiny_model_of(architecture.name);
    model.n_rot = 16;
    expect_reference(model);
  }
}

TEST(Forward, MatchesTheReferenceForMixtral) {
  test::TinyModel model = test::tiny_model_of("llama");
  model.n_experts = 8;
  expect_reference(model);
  model.split_experts = true;
  expect_reference(model);
}

TEST(Forward, MatchesTheReferenceForSplitExpertsBesideASharedOne) {
  test::TinyModel model = test::tiny_model_of("qwen2moe");
  model.split_experts = true;
  expect_reference(model);
}

TEST(Forward, MatchesTheReferenceForTiedOutputAndOneKvHead) {
  for (const char* architecture : {"qwen3", "phi3", "olmoe"}) {
    test::TinyModel model = test::tiny_model_of(architecture);
    model.tied_output = true;
    model.n_kv_heads = 1;
    expect_reference(model);
  }
}

TEST(Forward, MatchesTheReferenceForRopeScalings) {
  for (const char* scaling : {"linear", "yarn"}) {
    for (const char* architecture : {"qwen2", "mistral3"}) {
      test::TinyModel model = test::tiny_model_of(architecture);
      model.rope_scaling = scaling;
      model.n_ctx_orig = 64;
      expect_reference(model);
    }
  }
  test::TinyModel latent = test::tiny_model_of("deepseek2");
  latent.rope_scaling = "yarn";
  latent.n_ctx_orig = 64;
  expect_reference(latent);
  test::TinyModel model = test::tiny_model_of("llama");
  model.rope_freqs = true;
  expect_reference(model);
}

TEST(Forward, MatchesTheReferenceForOtherFormsOfLatentAttention) {
  test::TinyModel second = test::tiny_model_of("deepseek2"), undivided = second;
  second.second_version = true;
  expect_reference(second);
  undivided.undivided = true;
  expect_reference(undivided);
}

TEST(Forward, MatchesTheReferenceBehindTheOriginalContext) {
  // Queries grow, and the factors for long contexts count.
  for (const char* architecture : {"mistral3", "phi3", "phimoe"}) {
    test::TinyModel model = test::tiny_model_of(architecture);
    model.n_ctx_orig = 16;
    expect_reference(model);
  }
}

}  // namespace
}  // namespace sluice
