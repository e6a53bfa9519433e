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
    EXPECT_EQ(spec.n_layers(), model.n_layers);
    EXPECT_EQ(spec.n_embd, 64u);
    EXPECT_EQ(spec.n_experts(), model.n_experts);
    if (!std::holds_alternative<AttentionSpec>(spec.layers.back().mixer)) continue;
    const auto& attention = std::get<AttentionSpec>(spec.layers.back().mixer);
    EXPECT_EQ(attention.q_dim(), 128u);
    EXPECT_EQ(attention.k_dim(), 64u);
    const bool is_granite = spec.architecture == "granitemoe";
    EXPECT_FLOAT_EQ(attention.scale, is_granite ? 0.125f : 1.0f / std::sqrt(32.0f));
  }
}

TEST(Architecture, LayersWithWindowsAndTheirCurves) {
  struct Expected {
    const char* architecture;
    std::uint32_t full_every, local_curve;
  };
  for (const Expected& expected :
       {Expected{"gpt-oss", 2, 0}, Expected{"gemma2", 2, 0}, Expected{"gemma3", 6, 1}}) {
    test::TinyModel model = test::tiny_model_of(expected.architecture);
    model.n_layers = 12;
    const ModelSpec spec = read_spec(metadata_of(model));
    for (std::uint32_t i = 0; i < spec.n_layers(); ++i) {
      const auto& attention = std::get<AttentionSpec>(spec.layers[i].mixer);
      const bool is_full = i % expected.full_every == expected.full_every - 1;
      EXPECT_EQ(attention.window == 0, is_full) << expected.architecture << " layer " << i;
      EXPECT_EQ(attention.curve, is_full ? 0 : expected.local_curve)
          << expected.architecture << " layer " << i;
    }
  }
}

TEST(Architecture, TheLargestGemmasScaleScoresByTheWidthPerHead) {
  test::TinyModel model = test::tiny_model_of("gemma2");
  for (const std::uint32_t n_layers : {42u, 46u}) {
    model.n_layers = n_layers;
    const ModelSpec spec = read_spec(metadata_of(model));
    EXPECT_FLOAT_EQ(std::get<AttentionSpec>(spec.layers[0].mixer).scale,
                    n_layers == 46 ? std::sqrt(4.0f / 64.0f) : 1.0f / std::sqrt(32.0f));
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

TEST(Architecture, FirstLayersMayBeDense) {
  gguf::Metadata metadata = metadata_of(test::tiny_model_of("glm4moe"));
  metadata.set("glm4moe.leading_dense_block_count", test::uint_value(2));
  metadata.set("glm4moe.feed_forward_length", test::uint_value(160));
  const ModelSpec spec = read_spec(metadata);
  ASSERT_EQ(spec.n_layers(), 3u);
  EXPECT_EQ(std::get<FfnSpec>(spec.layers[1].channel).width, 160u);
  EXPECT_EQ(std::get<MoeSpec>(spec.layers[2].channel).expert.width, 96u);
  EXPECT_EQ(std::get<MoeSpec>(spec.layers[2].channel).shared.width, 2u * 96);
}

TEST(Architecture, LatentAttention) {
  test::TinyModel model = test::tiny_model_of("deepseek2");
  model.rope_scaling = "yarn";
  gguf::Metadata metadata = metadata_of(model);
  const ModelSpec spec = read_spec(metadata);
  const auto& mla = std::get<MlaSpec>(spec.layers.back().mixer);
  EXPECT_EQ(mla.q_dim(), 4u * 64);
  EXPECT_EQ(mla.kept_dim(), 96u + 32);
  EXPECT_EQ(mla.out_dim(), 4u * 64);
  const float growth = 1.0f + 0.05f * std::log(4.0f);
  EXPECT_FLOAT_EQ(mla.scale, growth * growth / 8.0f);
  EXPECT_FLOAT_EQ(spec.curves[0].params.attn_factor, 1.0f / (1.0f + 0.1f * std::log(4.0f)));
  metadata.set("deepseek2.attention.key_length", test::uint_value(192));
  EXPECT_NE(refusal(metadata, ErrorCode::invalid_file).find("key_length"), std::string::npos);
}

TEST(Architecture, LatentAttentionOfTheOlderForm) {
  test::TinyModel model = test::tiny_model_of("deepseek2");
  model.undivided = true;
  gguf::Metadata metadata = metadata_of(model);
  const ModelSpec spec = read_spec(metadata);
  const auto& mla = std::get<MlaSpec>(spec.layers.back().mixer);
  EXPECT_TRUE(mla.undivided);
  EXPECT_EQ(mla.q_dim(), 4u * 64);
  EXPECT_EQ(mla.kept_dim(), 96u + 32);
  EXPECT_EQ(mla.out_dim(), 4u * 64);
  metadata.set("deepseek2.attention.key_length", test::uint_value(32));
  EXPECT_NE(refusal(metadata, ErrorCode::invalid_file).find("key_length"), std::string::npos);
}

TEST(Architecture, FilesThatDoNotNameTheScoringAreOfVersionTwoOrOfGlm) {
  const gguf::Metadata whole = metadata_of(test::tiny_model_of("deepseek2"));
  gguf::Metadata metadata;
  for (const auto& entry : whole.entries()) {
    if (entry.key != "deepseek2.expert_gating_func") metadata.set(entry.key, entry.value);
  }
  using Scoring = kernels::RouterParams::Scoring;
  EXPECT_EQ(read_spec(metadata).experts()->router.scoring, Scoring::softmax);
  EXPECT_FALSE(read_spec(metadata).experts()->selection_bias);
  metadata.set("deepseek2.block_count", test::uint_value(47));
  metadata.set("deepseek2.vocab_size", test::uint_value(154880));
  EXPECT_EQ(read_spec(metadata).experts()->router.scoring, Scoring::sigmoid);
  EXPECT_TRUE(read_spec(metadata).experts()->selection_bias);
}

TEST(Architecture, GroupsOfExperts) {
  test::TinyModel model = test::tiny_model_of("deepseek2");
  EXPECT_EQ(read_spec(metadata_of(model)).experts()->router.n_group_best, 2u);
  model.second_version = true;
  gguf::Metadata metadata = metadata_of(model);
  const kernels::RouterParams router = read_spec(metadata).experts()->router;
  EXPECT_EQ(router.n_groups, 4u);
  EXPECT_EQ(router.n_groups_used, 2u);
  EXPECT_EQ(router.n_group_best, 1u);
  metadata.set("deepseek2.expert_group_count", test::uint_value(3));
  EXPECT_NE(refusal(metadata, ErrorCode::invalid_file).find("expert_group_count"), std::string::npos);
  metadata.set("deepseek2.expert_group_count", test::uint_value(8));
  metadata.set("deepseek2.expert_group_used_count", test::uint_value(1));
  refusal(metadata, ErrorCode::invalid_file);
}

TEST(Architecture, EverySecondLayerMayHaveExperts) {
  test::TinyModel model = test::tiny_model_of("ernie4_5-moe");
  model.n_layers = 6;
  gguf::Metadata metadata = metadata_of(model);
  metadata.set("ernie4_5-moe.interleave_moe_layer_step", test::uint_value(2));
  metadata.set("ernie4_5-moe.leading_dense_block_count", test::uint_value(2));
  const ModelSpec spec = read_spec(metadata);
  std::vector<bool> has_experts;
  for (const LayerSpec& layer : spec.layers)
    has_experts.push_back(std::holds_alternative<MoeSpec>(layer.channel));
  EXPECT_EQ(has_experts, (std::vector<bool>{false, false, false, true, false, true}));
}

TEST(Architecture, EveryFourthLayerOfLlama4SeesTheWholeText) {
  test::TinyModel model = test::tiny_model_of("llama4");
  model.n_layers = 8;
  gguf::Metadata metadata = metadata_of(model);
  const ModelSpec spec = read_spec(metadata);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const auto& attention = std::get<AttentionSpec>(spec.layers[i].mixer);
    const bool is_whole = i % 4 == 3;
    EXPECT_EQ(attention.chunk, is_whole ? 0u : 8192u);
    EXPECT_EQ(attention.rotates, !is_whole);
    EXPECT_EQ(attention.temperature.interval, is_whole ? 8192u : 1u);
    EXPECT_EQ(attention.qk_norm == AttentionSpec::QkNorm::gainless, !is_whole);
  }
  metadata.set("llama4.expert_count", test::uint_value(128));
  const ModelSpec wide = read_spec(metadata);
  EXPECT_EQ(std::get<AttentionSpec>(wide.layers[0].mixer).qk_norm, AttentionSpec::QkNorm::none);
  metadata.set("llama4.expert_used_count", test::uint_value(2));
  EXPECT_NE(refusal(metadata, ErrorCode::unsupported).find("expert_used_count"), std::string::npos);
}

TEST(Architecture, LayersThatGuessFurtherTokensAreNotRun) {
  gguf::Metadata metadata = metadata_of(test::tiny_model_of("glm4moe"));
  EXPECT_EQ(read_spec(metadata).n_layers(), 3u);
  EXPECT_EQ(read_spec(metadata).n_prediction_layers, 1u);
  metadata.set("glm4moe.nextn_predict_layers", test::uint_value(4));
  EXPECT_NE(refusal(metadata, ErrorCode::invalid_file).find("nextn_predict_layers"), std::string::npos);
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

TEST(Architecture, RecurrentLayersStandBetweenThoseWithAttention) {
  test::TinyModel tiny = test::tiny_model_of("qwen3next");
  tiny.n_layers = 7;
  gguf::Metadata metadata = metadata_of(tiny);
  const ModelSpec spec = read_spec(metadata);
  for (std::uint32_t i = 0; i < 7; ++i)
    EXPECT_EQ(std::holds_alternative<AttentionSpec>(spec.layers[i].mixer), i == 2 || i == 5) << i;
  EXPECT_TRUE(std::get<AttentionSpec>(spec.layers[2].mixer).out_gate);
  const DeltaSpec& delta = std::get<DeltaSpec>(spec.layers[0].mixer);
  EXPECT_TRUE(delta.joint_gates);
  EXPECT_EQ(delta.shape.n_channels(), 2u * 64 + 128);
  metadata.set("qwen3next.ssm.inner_size", test::uint_value(256));
  EXPECT_NE(refusal(metadata, ErrorCode::invalid_file).find("ssm.inner_size"), std::string::npos);
  metadata.set("qwen3next.ssm.inner_size", test::uint_value(4 * 24));
  metadata.set("qwen3next.ssm.state_size", test::uint_value(24));
  EXPECT_NE(refusal(metadata, ErrorCode::unsupported).find("ssm.state_size"), std::string::npos);
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
