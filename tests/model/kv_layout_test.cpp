// Goal: layers with the same window share a page, each at a place of its own, and what a page takes adds up.
#include "model/kv_layout.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "sluice/error.hpp"

namespace sluice::model {
namespace {

constexpr kernels::KvShape k_shape{2, 64, 32};

TEST(KvLayout, LayersThatSeeTheSamePositionsShareAPage) {
  const std::vector<KvLayer> layers = {{k_shape, 0}, {{1, 128, 128}, 0}, {k_shape, 0}};
  const KvLayout layout = plan_kv(layers);
  ASSERT_EQ(layout.groups.size(), 1u);
  EXPECT_EQ(layout.groups[0].n_layers, 3u);
  EXPECT_EQ(layout.groups[0].page_bytes, 64u * 2 * (2 * (64 + 32) + 256 + 2 * (64 + 32)));
  EXPECT_EQ(layout.groups[0].token_bytes(), layout.groups[0].page_bytes / 64);
  EXPECT_EQ(layout.views[0].offset_bytes, 0u);
  EXPECT_EQ(layout.views[1].offset_bytes, k_shape.layer_bytes());
  EXPECT_EQ(layout.views[2].offset_bytes, k_shape.layer_bytes() + 64 * 2 * 256);
  EXPECT_EQ(layout.views[1].shape.k_head_dim, 128u);
}

TEST(KvLayout, EachWindowIsAGroup) {
  std::vector<KvLayer> layers;
  for (std::uint32_t i = 0; i < 6; ++i) layers.push_back({k_shape, i % 2 == 0 ? 128u : 0u});
  const KvLayout layout = plan_kv(layers);
  ASSERT_EQ(layout.groups.size(), 2u);
  EXPECT_EQ(layout.groups[0].window, 128u);
  EXPECT_EQ(layout.groups[1].window, 0u);
  for (std::uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(layout.views[i].group, i % 2);
    EXPECT_EQ(layout.views[i].offset_bytes, i / 2 * k_shape.layer_bytes());
  }
  for (const KvGroup& group : layout.groups) EXPECT_EQ(group.page_bytes, 3 * k_shape.layer_bytes());
}

TEST(KvLayout, RefusesMoreWindowsThanThePassTablesHold) {
  std::vector<KvLayer> layers;
  for (std::uint32_t i = 0; i < kernels::k_max_kv_groups; ++i) layers.push_back({k_shape, 100 + i});
  EXPECT_EQ(plan_kv(layers).groups.size(), kernels::k_max_kv_groups);
  layers.push_back({k_shape, 0});
  try {
    plan_kv(layers);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
}

TEST(KvLayout, BlocksOf8BitsTakeTheirBytesAndWholeBlocks) {
  std::vector<KvLayer> layers(3, {{2, 64, 32, kernels::KvType::q8_0}, 0});
  const KvLayout layout = plan_kv(layers);
  EXPECT_EQ(layout.groups[0].page_bytes, 3u * 64 * 2 * (2 * 34 + 34));
  layers[1].shape.v_head_dim = 48;
  try {
    plan_kv(layers);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("--kv-type f16"), std::string::npos);
  }
}

TEST(KvLayout, ValuesInKeysTakeNoRoom) {
  KvLayer layer{{1, 96, 64, kernels::KvType::q8_0}, 0};
  layer.shape.v_in_k = true;
  const std::vector<KvLayer> layers(2, layer);
  const KvLayout layout = plan_kv(layers);
  EXPECT_EQ(layout.groups[0].page_bytes, 2u * 64 * 3 * 34);
  EXPECT_EQ(layout.views[1].offset_bytes, 64u * 3 * 34);
}

}  // namespace
}  // namespace sluice::model
