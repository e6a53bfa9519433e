// Goal: tensor names of the GGUF convention are taken apart and given their roles.
#include "residency/roles.hpp"

#include <gtest/gtest.h>

namespace sluice::residency {
namespace {

TEST(TensorName, SplitsLayerPartExpertAndSuffix) {
  const TensorName merged = parse_tensor_name("blk.12.ffn_gate_exps.weight");
  EXPECT_EQ(merged.layer, 12);
  EXPECT_EQ(merged.part, "ffn_gate_exps");
  EXPECT_EQ(merged.expert, -1);
  EXPECT_EQ(merged.suffix, "weight");
  const TensorName single = parse_tensor_name("blk.3.ffn_up.5.weight");
  EXPECT_EQ(single.layer, 3);
  EXPECT_EQ(single.part, "ffn_up");
  EXPECT_EQ(single.expert, 5);
  EXPECT_EQ(single.suffix, "weight");
  const TensorName outside = parse_tensor_name("output_norm.weight");
  EXPECT_EQ(outside.layer, -1);
  EXPECT_EQ(outside.part, "output_norm");
}

TEST(TensorName, SurvivesOddNames) {
  for (const char* name : {"", ".", "blk.", "blk.x.attn_q.weight", "blk.-1.attn_q.weight",
                           "blk.99999999999999.a.b", "...", "blk.1"}) {
    const TensorName parsed = parse_tensor_name(name);
    EXPECT_GE(parsed.layer, -1) << name;
    EXPECT_EQ(parsed.expert, -1) << name;
  }
}

TEST(Role, FollowsTheName) {
  EXPECT_EQ(classify_tensor("token_embd.weight"), Role::token_embedding);
  EXPECT_EQ(classify_tensor("output.weight"), Role::output_head);
  EXPECT_EQ(classify_tensor("output_norm.weight"), Role::norm);
  EXPECT_EQ(classify_tensor("rope_freqs.weight"), Role::rope_table);
  EXPECT_EQ(classify_tensor("blk.0.attn_norm.weight"), Role::norm);
  EXPECT_EQ(classify_tensor("blk.0.attn_q_norm.weight"), Role::norm);
  EXPECT_EQ(classify_tensor("blk.0.ffn_norm.weight"), Role::norm);
  EXPECT_EQ(classify_tensor("blk.0.attn_q.weight"), Role::attention);
  EXPECT_EQ(classify_tensor("blk.0.attn_output.bias"), Role::attention);
  EXPECT_EQ(classify_tensor("blk.0.ffn_gate_inp.weight"), Role::router);
  EXPECT_EQ(classify_tensor("blk.0.exp_probs_b.bias"), Role::router);
  EXPECT_EQ(classify_tensor("blk.0.ffn_down_exps.weight"), Role::expert);
  EXPECT_EQ(classify_tensor("blk.0.ffn_down.7.weight"), Role::expert);
  EXPECT_EQ(classify_tensor("blk.0.ffn_down_shexp.weight"), Role::shared_expert);
  EXPECT_EQ(classify_tensor("blk.0.ffn_down.weight"), Role::dense_ffn);
  EXPECT_EQ(classify_tensor("blk.0.mystery.weight"), Role::other);
}

}  // namespace
}  // namespace sluice::residency
