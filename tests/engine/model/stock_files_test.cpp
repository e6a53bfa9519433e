// Goal: files as other programs write them give the same bits, or say what is wrong with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/edited_model.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

using test::EditedModel;
using ::testing::HasSubstr;

class StockFiles : public ::testing::Test {
 protected:
  struct Run {
    std::vector<float> logits;
    Plan plan;
    std::uint64_t read_bytes = 0;
  };
  StockFiles() : path_(test::write_tiny_model(dir_.path(), {})) {
    options_.n_threads = 1;
    options_.prefill_chunk = 4;
    hooks_.process_bytes = 0;
  }
  /// `share` of the way from the smallest budget to one that holds everything.
  Run run(double share) const {
    OpenOptions options = options_;
    const Plan whole = engine::open_model(path_, options, hooks_).plan();
    options.memory_bytes =
        whole.floor_bytes + static_cast<std::uint64_t>(
                                share * static_cast<double>(whole.resident_from_bytes - whole.floor_bytes));
    Model model = engine::open_model(path_, options, hooks_);
    Run result;
    result.plan = model.plan();
    Sequence sequence = model.new_sequence();
    for (TokenId i = 0; i < 40; ++i) {
      const TokenId token = (i * i * 7 + i * 31) % 256;
      const StepItem item{&sequence, {&token, 1}, LogitsWanted::last};
      model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> row) {
        result.logits.insert(result.logits.end(), row.begin(), row.end());
      });
    }
    result.read_bytes = model.stats().streamed_read_bytes;
    return result;
  }
  std::string refusal() const {
    try {
      Model::open(path_);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::invalid_file || error.code() == ErrorCode::unsupported);
      return error.what();
    }
    return "no error";
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  OpenOptions options_;
  engine::Hooks hooks_;
};

TEST_F(StockFiles, TheOrderOfTheDataChangesNothing) {
  options_.look_ahead = false;  // What it reads depends on the drive's times.
  const Run ordered = run(0.3);
  ASSERT_GT(ordered.plan.streamed_bytes, 0u);
  const EditedModel model(path_);
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    model.write_shuffled(path_, seed);
    const Run shuffled = run(0.3);
    EXPECT_EQ(shuffled.logits, ordered.logits);
    EXPECT_EQ(shuffled.plan.n_cached_units, ordered.plan.n_cached_units);
    EXPECT_NEAR(static_cast<double>(shuffled.read_bytes), static_cast<double>(ordered.read_bytes),
                0.05 * static_cast<double>(ordered.read_bytes));
  }
}

TEST_F(StockFiles, OneTensorPerExpertIsTheSameModel) {
  const std::vector<float> merged = run(2.0).logits;
  test::TinyModel split;
  split.split_experts = true;
  test::write_tiny_model(dir_.path(), split);
  // The seeds of its tensors differ, so the weights are those of the merged file, cut.
  EditedModel model(path_);
  const test::TempDir other;
  const EditedModel whole(test::write_tiny_model(other.path(), {}));
  for (EditedModel::Tensor& tensor : model.tensors) {
    for (const EditedModel::Tensor& from : whole.tensors) {
      const std::size_t at = from.name.find("_exps.weight");
      if (at == std::string::npos && from.name == tensor.name) tensor.bytes = from.bytes;
      if (at == std::string::npos || !tensor.name.starts_with(from.name.substr(0, at) + ".")) continue;
      const std::size_t expert = std::stoul(tensor.name.substr(at + 1));
      const auto begin = from.bytes.begin() + static_cast<std::ptrdiff_t>(expert * tensor.bytes.size());
      std::copy_n(begin, tensor.bytes.size(), tensor.bytes.begin());
    }
  }
  for (const std::uint64_t seed : {0u, 1u, 2u}) {
    if (seed == 0) {
      model.write(path_);
    } else {
      model.write_shuffled(path_, seed);
    }
    for (const double share : {0.0, 0.4, 2.0}) EXPECT_EQ(run(share).logits, merged) << seed << ' ' << share;
  }
  EditedModel mixed = model;
  EditedModel::Tensor& odd = mixed.tensor("blk.1.ffn_up.5.weight");
  odd.type = gguf::TensorType::f16;
  odd.bytes.resize(odd.bytes.size() / 2);
  mixed.write(path_);
  EXPECT_THAT(refusal(), HasSubstr("blk.1.ffn_up.5.weight"));
  EditedModel lacking = model;
  std::erase_if(lacking.tensors, [](const auto& tensor) { return tensor.name == "blk.1.ffn_up.5.weight"; });
  lacking.write(path_);
  EXPECT_THAT(refusal(), HasSubstr("blk.1.ffn_up.5.weight"));
}

TEST_F(StockFiles, AnyNumberOfActiveExpertsRunsUnderAnyBudget) {
  EditedModel model(path_);
  std::uint64_t floor = 0;
  for (const std::uint64_t n_used : {1u, 3u, 7u, 8u}) {
    model.metadata.set("qwen3moe.expert_used_count", test::uint_value(n_used));
    model.write(path_);
    const Run resident = run(2.0);
    EXPECT_GT(resident.plan.floor_bytes, floor);
    floor = resident.plan.floor_bytes;
    for (const double share : {0.0, 0.3, 0.9}) EXPECT_EQ(run(share).logits, resident.logits) << n_used;
  }
  for (const std::uint64_t n_used : {0u, 9u}) {
    model.metadata.set("qwen3moe.expert_used_count", test::uint_value(n_used));
    model.write(path_);
    EXPECT_THAT(refusal(), HasSubstr("expert_used_count"));
  }
}

TEST_F(StockFiles, ATiedHeadAndItsCopyAreTheSame) {
  test::TinyModel tied;
  tied.tied_output = true;
  test::write_tiny_model(dir_.path(), tied);
  const std::vector<float> expected = run(2.0).logits;
  EditedModel model(path_);
  model.tensors.push_back(model.tensor("token_embd.weight"));
  model.tensors.back().name = "output.weight";
  model.write(path_);
  EXPECT_EQ(run(2.0).logits, expected);
  EXPECT_EQ(run(0.2).logits, expected);
}

TEST_F(StockFiles, UnknownKeysOfAllKindsAreReadAndIgnored) {
  using gguf::Array;
  using gguf::Value;
  using gguf::ValueType;
  const std::vector<float> expected = run(2.0).logits;
  EditedModel model(path_);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Value inner = test::array_value(ValueType::i8, std::vector<std::uint8_t>{255, 1});
  const Value strings = test::strings_value({"", "a"});
  model.metadata.set("vendor.nested",
                     {ValueType::array, Array{ValueType::array, std::vector<Value>{inner, strings}}});
  model.metadata.set("vendor.empty", {ValueType::array, Array{ValueType::array, std::vector<Value>{}}});
  model.metadata.set("vendor.floats",
                     test::array_value(ValueType::f32, std::vector<float>{nan, INFINITY, 0.5f}));
  model.metadata.set("vendor.nan", test::float_value(nan, ValueType::f64));
  model.metadata.set("vendor.long", test::string_value(std::string(200'000, 'x')));
  model.metadata.set("vendor.\xF0\x9F\xA6\x8A", test::int_value(-1, ValueType::i64));
  model.write(path_);
  EXPECT_EQ(run(2.0).logits, expected);
  EXPECT_TRUE(inspect(path_).runnable);
}

TEST_F(StockFiles, ASecondCopyMayHaveTheNameOfAShard) {
  const auto named = dir_ / "k-00001-of-00013.gguf";
  const auto copy = dir_ / "copy-00002-of-00013.gguf";
  std::filesystem::copy_file(path_, named);
  std::filesystem::copy_file(path_, copy);
  OpenOptions options;
  options.second_copy = copy;
  EXPECT_EQ(Model::open(named, options).info().n_layers, 3u);
}

}  // namespace
}  // namespace sluice
