// Goal: the spec of a model comes out right, and nonsense in metadata is refused with the key's name.
#include "model/architecture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sluice/error.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::model {
namespace {

gguf::Metadata metadata_of(const test::TinyModel& model) {
  return test::parse_bytes(test::make_tiny_model(model)).metadata;
}

std::string refusal(const gguf::Metadata& metadata, ErrorCode code) {
  try {
    read_spec(metadata);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

TEST(Architecture, ReadEveryKnownArchitecture) {
  for (const Architecture& architecture : known_architectures()) {
    const test::TinyModel model = test::tiny_model_of(architecture.name);
    const ModelSpec spec = read_spec(metadata_of(model));
    EXPECT_EQ(spec.architecture, architecture.name);
    const auto& attention = std::get<AttentionSpec>(spec.layers.back().mixer);
    EXPECT_EQ(spec.n_layers(), 3u);
    EXPECT_EQ(spec.n_embd, 64u);
    EXPECT_EQ(attention.q_dim(), 128u);
    EXPECT_EQ(attention.k_dim(), 64u);
    EXPECT_EQ(spec.n_experts(), model.n_experts);
    const bool is_granite = spec.architecture == "granitemoe";
    EXPECT_FLOAT_EQ(attention.scale, is_granite ? 0.125f : 1.0f / std::sqrt(32.0f));
  }
}

TEST(Architecture, LlamaWithExpertsIsMixtral) {
  test::TinyModel model;
  model.architecture = "llama";
  const ModelSpec spec = read_spec(metadata_of(model));
  EXPECT_EQ(spec.n_experts(), 8u);
  EXPECT_EQ(spec.n_experts_used(), 2u);
  EXPECT_EQ(spec.experts()->expert.width, 96u);
  EXPECT_TRUE(spec.experts()->router.normalize);
}

TEST(Architecture, UnknownArchitectureListsTheKnown) {
  gguf::Metadata metadata = metadata_of({});
  metadata.set("general.architecture", test::string_value("mamba9"));
  const std::string message = refusal(metadata, ErrorCode::unsupported);
  EXPECT_NE(message.find("mamba9"), std::string::npos) << message;
  EXPECT_NE(message.find("qwen3moe"), std::string::npos) << message;
}

TEST(Architecture, NonsenseIsRefusedByKey) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<std::string, gguf::Value>> cases = {
      {"qwen3moe.block_count", test::uint_value(0)},
      {"qwen3moe.block_count", test::uint_value(4'000'000'000u)},
      {"qwen3moe.embedding_length", test::uint_value(0)},
      {"qwen3moe.context_length", test::uint_value(0xffffffffu)},
      {"qwen3moe.attention.head_count", test::uint_value(0)},
      {"qwen3moe.attention.head_count_kv", test::uint_value(0)},
      {"qwen3moe.attention.key_length", test::uint_value(1u << 30)},
      {"qwen3moe.rope.dimension_count", test::uint_value(33)},
      {"qwen3moe.rope.dimension_count", test::uint_value(64)},
      {"qwen3moe.rope.freq_base", test::float_value(-1.0)},
      {"qwen3moe.rope.freq_base", test::float_value(nan)},
      {"qwen3moe.attention.layer_norm_rms_epsilon", test::float_value(nan)},
      {"qwen3moe.attention.layer_norm_rms_epsilon", test::float_value(-1e-5)},
      {"qwen3moe.expert_count", test::uint_value(70'000)},
      {"qwen3moe.expert_used_count", test::uint_value(9)},
      {"qwen3moe.expert_used_count", test::uint_value(0)},
      {"qwen3moe.expert_feed_forward_length", test::uint_value(0)},
  };
  for (const auto& [key, value] : cases) {
    gguf::Metadata metadata = metadata_of({});
    metadata.set(key, value);
    const std::string message = refusal(metadata, ErrorCode::invalid_file);
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
  gguf::Metadata metadata = metadata_of({});
  metadata.set("qwen3moe.attention.head_count_kv", test::uint_value(3));
  refusal(metadata, ErrorCode::invalid_file);
  metadata.set("qwen3moe.rope.scaling.type", test::string_value("longrope"));
  metadata.set("qwen3moe.attention.head_count_kv", test::uint_value(2));
  EXPECT_NE(refusal(metadata, ErrorCode::unsupported).find("longrope"), std::string::npos);
}

TEST(Architecture, HeadCountsThatDifferBetweenLayersAreRefused) {
  gguf::Metadata metadata = metadata_of({});
  metadata.set("qwen3moe.attention.head_count_kv",
               test::array_value(gguf::ValueType::u32, std::vector<std::uint32_t>{2, 2, 4}));
  EXPECT_NE(refusal(metadata, ErrorCode::unsupported).find("layer 2"), std::string::npos);
  metadata.set("qwen3moe.attention.head_count_kv",
               test::array_value(gguf::ValueType::u32, std::vector<std::uint32_t>{2, 2, 2}));
  EXPECT_EQ(std::get<AttentionSpec>(read_spec(metadata).layers.front().mixer).n_kv_heads, 2u);
}

TEST(Architecture, KeysThatNobodyReadsAreRefusedByName) {
  gguf::Metadata metadata = metadata_of({});
  metadata.set("qwen3moe.vocab_size", test::uint_value(260));
  metadata.set("other.residual_scale", test::float_value(2.0));
  EXPECT_NO_THROW(read_spec(metadata));
  metadata.set("qwen3moe.residual_scale", test::float_value(2.0));
  metadata.set("qwen3moe.attention.sliding_window", test::uint_value(128));
  const std::string message = refusal(metadata, ErrorCode::unsupported);
  EXPECT_NE(message.find("qwen3moe.residual_scale"), std::string::npos) << message;
  EXPECT_NE(message.find("qwen3moe.attention.sliding_window"), std::string::npos) << message;
  EXPECT_EQ(message.find("vocab_size"), std::string::npos) << message;
}

}  // namespace
}  // namespace sluice::model
