// Goal: a graph declares what it uses in the order of use, knows which layers have experts, and says what a
// pass takes.
#include "model/graph.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "model/architecture.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::model {
namespace {

constexpr std::uint32_t k_n_vocab = 260;

Graph graph_of(const test::TinyModel& model) {
  ModelSpec spec = read_spec(test::parse_bytes(test::make_tiny_model(model)).metadata);
  spec.n_vocab = k_n_vocab;
  return Graph(std::move(spec));
}

/// Layers with experts among dense ones: no, yes, no, yes.
ModelSpec mixed_spec() {
  ModelSpec spec;
  spec.n_embd = 64;
  spec.n_vocab = k_n_vocab;
  spec.curves.emplace_back().params.n_rot = 16;
  AttentionSpec attention;
  attention.n_heads = 4;
  attention.n_kv_heads = 2;
  attention.k_head_dim = 16;
  attention.v_head_dim = 24;
  MoeSpec moe;
  moe.n_experts = 8;
  moe.router.n_used = 2;
  moe.expert.width = 32;
  for (std::uint32_t i = 0; i < 4; ++i) {
    LayerSpec layer;
    layer.mixer = attention;
    layer.channel = i % 2 == 0 ? ChannelSpec(FfnSpec{160}) : ChannelSpec(moe);
    spec.layers.push_back(layer);
  }
  return spec;
}

/// Second scales, which every matrix may have, left out.
std::vector<std::string> names_of(const Declaration& declaration) {
  std::vector<std::string> names;
  for (const TensorNeed& need : declaration.tensors) {
    if (need.kind != TensorNeed::Kind::scales) names.push_back(need.name);
  }
  return names;
}

const TensorNeed& find(const Declaration& declaration, const std::string& name) {
  const auto found = std::find_if(declaration.tensors.begin(), declaration.tensors.end(),
                                  [&](const TensorNeed& need) { return need.name == name; });
  if (found == declaration.tensors.end()) throw std::out_of_range(name);
  return *found;
}

TEST(Graph, DeclaresInTheOrderOfUse) {
  test::TinyModel model = test::tiny_model_of("qwen2moe");
  model.n_layers = 1;
  const std::vector<std::string> expected = {"token_embd.weight",
                                             "rope_freqs.weight",
                                             "blk.0.attn_norm.weight",
                                             "blk.0.attn_q.weight",
                                             "blk.0.attn_k.weight",
                                             "blk.0.attn_v.weight",
                                             "blk.0.attn_q.bias",
                                             "blk.0.attn_k.bias",
                                             "blk.0.attn_v.bias",
                                             "blk.0.attn_output.weight",
                                             "blk.0.attn_output.bias",
                                             "blk.0.ffn_norm.weight",
                                             "blk.0.ffn_gate_inp.weight",
                                             "blk.0.ffn_gate_inp_shexp.weight",
                                             "blk.0.ffn_gate_shexp.weight",
                                             "blk.0.ffn_up_shexp.weight",
                                             "blk.0.ffn_down_shexp.weight",
                                             "output_norm.weight",
                                             "output.weight"};
  const Declaration declaration = graph_of(model).declare();
  EXPECT_EQ(names_of(declaration), expected);
  EXPECT_EQ(declaration.blocks, (std::vector<Role>{Role::attention, Role::shared_expert}));
  EXPECT_EQ(find(declaration, "blk.0.attn_q.bias").need, Need::required);
  EXPECT_EQ(find(declaration, "blk.0.attn_output.bias").need, Need::optional);
  EXPECT_EQ(find(declaration, "output.weight").need, Need::optional);
}

TEST(Graph, DeclaresEachTensorOnceAndBlocksOneAfterTheOther) {
  for (const Architecture& architecture : known_architectures()) {
    const Declaration declaration = graph_of(test::tiny_model_of(architecture.name)).declare();
    std::set<std::string> names;
    int block = 0;
    for (const TensorNeed& need : declaration.tensors) {
      EXPECT_TRUE(names.insert(need.name).second) << architecture.name << " " << need.name;
      EXPECT_EQ(need.block >= 0, need.kind == TensorNeed::Kind::matrix) << need.name;
      if (need.kind != TensorNeed::Kind::matrix) continue;
      EXPECT_TRUE(need.block == block || need.block == block + 1) << architecture.name << " " << need.name;
      block = need.block;
      EXPECT_EQ(need.role, declaration.blocks[static_cast<std::size_t>(block)]) << need.name;
    }
    EXPECT_EQ(static_cast<std::size_t>(block) + 1, declaration.blocks.size()) << architecture.name;
  }
}

TEST(Graph, OneMatrixForSeveralProductsHasAllTheirRows) {
  const Declaration declaration = graph_of(test::tiny_model_of("phi3")).declare();
  // 4 query and twice 2 KV heads of 32; gate and up of 96.
  EXPECT_EQ(find(declaration, "blk.2.attn_qkv.weight").n_out, 256u);
  EXPECT_EQ(find(declaration, "blk.2.attn_qkv.bias").n_in, 256u);
  EXPECT_EQ(find(declaration, "blk.2.ffn_up.weight").n_out, 192u);
  EXPECT_THROW(find(declaration, "blk.2.attn_q.weight"), std::out_of_range);
  EXPECT_THROW(find(declaration, "blk.2.ffn_gate.weight"), std::out_of_range);
}

TEST(Graph, KnowsWhichLayersHaveExperts) {
  Graph graph(mixed_spec());
  const Declaration declaration = graph.declare();
  ASSERT_EQ(declaration.experts.size(), 2u);
  EXPECT_EQ(declaration.experts[0].layer_idx, 1u);
  EXPECT_EQ(declaration.experts[1].layer_idx, 3u);
  for (const residency::UnitLayerSpec& layer : declaration.experts) {
    EXPECT_EQ(layer.n_experts, 8u);
    ASSERT_EQ(layer.parts.size(), 3u);
    EXPECT_EQ(layer.parts[1].stem, "ffn_up");
    EXPECT_EQ(layer.parts[1].n_out, 32u);
    EXPECT_EQ(layer.parts[2].n_in, 32u);
  }
  std::vector<int> next;
  for (const Graph::Layer& layer : graph.layers()) next.push_back(layer.next_units);
  EXPECT_EQ(next, (std::vector<int>{1, 3, 3, -1}));
  EXPECT_EQ(graph.spec().n_experts(), 8u);
  EXPECT_EQ(graph.spec().n_experts_used(), 2u);
}

TEST(Graph, SaysWhatAttentionKeepsAndMultiplies) {
  ModelSpec spec = mixed_spec();
  std::get<AttentionSpec>(spec.layers[1].mixer).window = 128;
  const Graph graph(std::move(spec));
  const std::vector<KvLayer> layers = graph.kv_layers();
  ASSERT_EQ(layers.size(), 4u);
  EXPECT_EQ(layers[0].window, 0u);
  EXPECT_EQ(layers[1].window, 128u);
  EXPECT_EQ(layers[2].shape.n_kv_heads, 2u);
  EXPECT_EQ(layers[2].shape.k_head_dim, 16u);
  EXPECT_EQ(layers[2].shape.v_head_dim, 24u);
  EXPECT_EQ(layers[2].products, 4u * (16 + 24));
}

TEST(Graph, LatentAttentionKeepsOneVector) {
  const std::vector<KvLayer> layers = graph_of(test::tiny_model_of("deepseek2")).kv_layers();
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[1].shape.n_kv_heads, 1u);
  EXPECT_EQ(layers[1].shape.k_head_dim, 96u + 32);
  EXPECT_EQ(layers[1].shape.layer_bytes(), 64u * 128 * 2);
  EXPECT_EQ(layers[1].products, 4u * (96 + 32 + 96));
  const Declaration declaration = graph_of(test::tiny_model_of("deepseek2")).declare();
  EXPECT_EQ(find(declaration, "blk.1.attn_k_b.weight").n_stacked, 4u);
}

// That a pass takes no more than this is checked by its arena: forward_test runs the largest passes.
TEST(Graph, APassTakesWhatItsLargestLayerTakes) {
  ModelSpec dense = mixed_spec(), experts = mixed_spec();
  dense.layers[1] = dense.layers[3] = dense.layers[0];
  experts.layers[0] = experts.layers[2] = experts.layers[1];
  const PassMemory mixed = pass_memory(Graph(mixed_spec()), 40);
  const PassMemory only_dense = pass_memory(Graph(std::move(dense)), 40);
  const PassMemory only_experts = pass_memory(Graph(std::move(experts)), 40);
  EXPECT_EQ(mixed.device_bytes, std::max(only_dense.device_bytes, only_experts.device_bytes));
  EXPECT_EQ(mixed.host_bytes, std::max(only_dense.host_bytes, only_experts.host_bytes));
  EXPECT_GT(only_experts.host_bytes, only_dense.host_bytes);
  EXPECT_EQ(mixed.scratch.max_rows, 40u);
  EXPECT_EQ(mixed.scratch.max_cols, 160u);
  EXPECT_EQ(only_experts.scratch.max_cols, 96u);  // 4 heads of 24, wider than the residual stream.
  EXPECT_EQ(mixed.scratch.max_hidden, 32u);
  EXPECT_EQ(only_dense.scratch.max_hidden, 0u);
  EXPECT_EQ(mixed.scratch.rope_columns, 16u);
  EXPECT_GT(pass_memory(Graph(mixed_spec()), 80).device_bytes, mixed.device_bytes);
}

}  // namespace
}  // namespace sluice::model
