// Goal: second scales of matrices (X.scale beside X.weight, as NVFP4 files have them) count. Method: scales
// that are powers of two give, bit for bit, what weights multiplied by them give.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "sluice/sluice.hpp"
#include "support/edited_model.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

std::vector<float> logits_of(const std::filesystem::path& path) {
  OpenOptions options;
  options.n_threads = 2;
  Model model = Model::open(path, options);
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> tokens = {5, 99, 17, 42, 200, 3};
  std::vector<float> all;
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  });
  return all;
}

std::vector<std::byte> bytes_of(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

/// Multiplies the parts of a tensor, as many as there are factors, each by one.
void multiply(test::EditedModel::Tensor& tensor, std::span<const float> factors) {
  const std::size_t n_floats = tensor.bytes.size() / sizeof(float);
  for (std::size_t i = 0; i < n_floats; ++i) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof value, sizeof value);
    value *= factors[i / (n_floats / factors.size())];
    std::memcpy(tensor.bytes.data() + i * sizeof value, &value, sizeof value);
  }
}

void add_scale(test::EditedModel& model, const std::string& stem, std::span<const float> factors) {
  model.tensors.push_back({stem + ".scale", gguf::TensorType::f32, {factors.size()}, bytes_of(factors)});
}

TEST(Scales, CountAsIfTheWeightsWereMultiplied) {
  const test::TempDir dir;
  const auto plain = test::write_tiny_model(dir.path(), {});
  const auto multiplied = dir.path() / "multiplied.gguf", scaled = dir.path() / "scaled.gguf";
  test::EditedModel with_factors(plain), with_scales(plain);
  const std::array<float, 1> one = {0.5f}, other = {4.0f};
  const std::array<float, 8> of_experts = {1, 2, 0.5f, 4, 1, 0.25f, 2, 8};
  for (const char* stem : {"blk.0.attn_q", "blk.1.attn_output", "blk.2.attn_v", "output"}) {
    const auto& factor = stem[0] == 'o' ? other : one;
    multiply(with_factors.tensor(std::string(stem) + ".weight"), factor);
    add_scale(with_scales, stem, factor);
  }
  for (const char* stem : {"blk.0.ffn_gate_exps", "blk.1.ffn_up_exps", "blk.2.ffn_down_exps"}) {
    multiply(with_factors.tensor(std::string(stem) + ".weight"), of_experts);
    add_scale(with_scales, stem, of_experts);
  }
  // Not needed where activations have eight bits, so it may be there.
  add_scale(with_scales, "blk.0.attn_q.input", one);
  with_scales.tensors.back().name = "blk.0.attn_q.input_scale";
  with_factors.write(multiplied);
  with_scales.write(scaled);
  const std::vector<float> expected = logits_of(multiplied);
  EXPECT_EQ(logits_of(scaled), expected);
  EXPECT_NE(logits_of(plain), expected);
}

}  // namespace
}  // namespace sluice
