// Goal: every expert's bytes are found, in both layouts files use, and slots have room for aligned windows.
#include "residency/unit_map.hpp"

#include <gtest/gtest.h>

#include "gguf/reader.hpp"
#include "residency/unit_layers.hpp"
#include "sluice/error.hpp"
#include "storage/read_queue.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {
namespace {

gguf::ModelFile parse(const test::TinyModel& model) {
  return test::parse_bytes(test::make_tiny_model(model));
}

UnitMap map_of(const gguf::ModelFile& file, const test::TinyModel& model, std::uint32_t alignment) {
  return map_units(file, model.n_layers, unit_layers(model), alignment);
}

TEST(UnitMap, FindsExpertsInBothLayouts) {
  for (const bool split : {false, true}) {
    test::TinyModel model;
    model.split_experts = split;
    const gguf::ModelFile file = parse(model);
    const UnitMap map = map_of(file, model, 4096);
    ASSERT_EQ(map.layers.size(), model.n_layers);
    EXPECT_EQ(map.n_units(), model.n_layers * model.n_experts);
    for (std::uint32_t layer = 0; layer < model.n_layers; ++layer) {
      const std::string base = "blk." + std::to_string(layer) + ".ffn_down";
      const gguf::TensorInfo* first = file.find_tensor(base + (split ? ".0.weight" : "_exps.weight"));
      const gguf::TensorInfo* sixth = file.find_tensor(base + (split ? ".5.weight" : "_exps.weight"));
      const auto down = static_cast<std::size_t>(ExpertPart::down);
      EXPECT_EQ(map.layers[layer].experts[0][down].offset_bytes, first->offset_bytes);
      EXPECT_EQ(
          map.layers[layer].experts[5][down].offset_bytes,
          split ? sixth->offset_bytes : first->offset_bytes + 5 * map.layers[layer].shapes[down].bytes());
    }
    EXPECT_EQ(map.weight_bytes(), model.n_layers * model.n_experts * 3ull * model.n_embd * model.n_ff * 4);
  }
}

TEST(UnitMap, SlotsHoldAlignedWindowsOfEveryExpert) {
  for (const std::uint32_t alignment : {512u, 4096u}) {
    test::TinyModel model;
    const gguf::ModelFile file = parse(model);
    const UnitMap map = map_of(file, model, alignment);
    for (const LayerUnits& layer : map.layers) {
      EXPECT_EQ(layer.slot_bytes % alignment, 0u);
      for (const auto& expert : layer.experts) {
        for (std::size_t part = 0; part < layer.n_parts(); ++part) {
          const auto window =
              storage::read_window(expert[part].offset_bytes, layer.shapes[part].bytes(), alignment);
          const std::uint64_t end =
              part + 1 < layer.n_parts() ? layer.slot_offset[part + 1] : layer.slot_bytes;
          EXPECT_EQ(layer.slot_offset[part] % alignment, 0u);
          EXPECT_LE(layer.slot_offset[part] + window.length, end);
        }
      }
    }
  }
}

TEST(UnitMap, NamesWhatIsMissingOrMisshapen) {
  test::TinyModel model;
  model.n_layers = 2;
  const gguf::ModelFile file = parse(model);
  model.n_layers = 3;
  try {
    map_of(file, model, 4096);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_file);
    EXPECT_NE(std::string(error.what()).find("blk.2.ffn_gate_exps.weight"), std::string::npos)
        << error.what();
  }
  model.n_layers = 2;
  model.n_ff = 128;
  EXPECT_THROW(map_of(file, model, 4096), Error);
}

TEST(UnitMap, LayersWithoutExpertsAndJointMatrices) {
  gguf::Writer writer;
  writer.add_tensor("blk.0.ffn_up.weight", gguf::TensorType::f32, {8, 24});
  for (const char* layer : {"blk.1.", "blk.3."}) {
    writer.add_tensor(std::string(layer) + "ffn_gate_up_exps.weight", gguf::TensorType::f32, {8, 24, 5});
    writer.add_tensor(std::string(layer) + "ffn_down_exps.weight", gguf::TensorType::f32, {12, 8, 5});
  }
  const gguf::ModelFile file = test::parse_bytes(test::write_with_pattern(writer));
  std::vector<UnitLayerSpec> layers;
  for (const std::uint32_t layer_idx : {1u, 3u})
    layers.push_back({layer_idx, 5, {{"ffn_gate_up", 8, 24}, {"ffn_down", 12, 8}}});
  const UnitMap map = map_units(file, 4, layers, 512);
  EXPECT_EQ(map.index_of_layer, (std::vector<int>{-1, 0, -1, 1}));
  ASSERT_EQ(map.layers.size(), 2u);
  EXPECT_EQ(map.layers[1].layer_idx, 3u);
  EXPECT_EQ(map.layers[1].n_parts(), 2u);
  EXPECT_EQ(map.layers[1].weight_bytes, 4u * (8 * 24 + 12 * 8));
  EXPECT_EQ(map.layers[1].experts[4][1].offset_bytes,
            file.find_tensor("blk.3.ffn_down_exps.weight")->offset_bytes + 4u * (4 * 12 * 8));
  EXPECT_EQ(unit_tensor_name(file, map.layers[1], 4, 0), "blk.3.ffn_gate_up_exps.weight (expert 4)");
  layers[1].parts[0].n_out = 16;
  EXPECT_THROW(map_units(file, 4, layers, 512), Error);
}

TEST(UnitMap, DenseModelsHaveNone) {
  test::TinyModel model;
  model.architecture = "qwen3";
  model.n_experts = 0;
  const gguf::ModelFile file = parse(model);
  EXPECT_TRUE(map_of(file, model, 4096).layers.empty());
}

}  // namespace
}  // namespace sluice::residency
