// Goal: every expert's bytes are found, in both layouts files use, and slots have room for aligned windows.
#include "residency/unit_map.hpp"

#include <gtest/gtest.h>

#include "gguf/reader.hpp"
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
  return map_units(file, model.n_layers, model.n_experts, model.n_embd, model.n_ff, alignment);
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
        for (std::size_t part = 0; part < k_n_expert_parts; ++part) {
          const auto window =
              storage::read_window(expert[part].offset_bytes, layer.shapes[part].bytes(), alignment);
          const std::uint64_t end =
              part + 1 < k_n_expert_parts ? layer.slot_offset[part + 1] : layer.slot_bytes;
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

TEST(UnitMap, DenseModelsHaveNone) {
  test::TinyModel model;
  model.architecture = "qwen3";
  model.n_experts = 0;
  const gguf::ModelFile file = parse(model);
  EXPECT_TRUE(map_of(file, model, 4096).layers.empty());
}

}  // namespace
}  // namespace sluice::residency
