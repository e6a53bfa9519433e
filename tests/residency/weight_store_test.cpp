// Goal: pinned tensors arrive byte for byte, neighbours share a read, and a failed read names its tensor.
#include "residency/weight_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "sluice/error.hpp"
#include "support/takes_all.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {
namespace {

class PinnedWeights : public ::testing::Test {
 protected:
  PinnedWeights() : path_(test::write_tiny_model(dir_.path(), {})), bytes_(test::read_bytes(path_)) {
    file_ = test::parse_bytes(bytes_);
    for (const gguf::TensorInfo& tensor : file_.tensors) {
      if (tensor.name.find("_exps") == std::string::npos) pinned_.push_back(&tensor);
    }
  }
  std::unique_ptr<WeightStore> open(const storage::FaultPlan* faults = nullptr) {
    std::vector<std::unique_ptr<storage::File>> files;
    files.push_back(storage::File::open(path_.string(), true));
    auto backend = storage::make_pread_backend(8, 2);
    if (faults != nullptr) backend = storage::make_fault_backend(std::move(backend), *faults);
    return std::make_unique<WeightStore>(
        std::move(files),
        std::make_unique<storage::ReadQueue>(std::move(backend), storage::ReadQueue::Options{}));
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
  gguf::ModelFile file_;
  std::vector<const gguf::TensorInfo*> pinned_;
};

TEST_F(PinnedWeights, ArriveByteForByte) {
  auto store = open();
  store->load_pinned(pinned_, {}, test::takes_all);
  for (const auto* tensor : pinned_) {
    const std::byte* data = store->find(*tensor);
    ASSERT_NE(data, nullptr) << tensor->name;
    EXPECT_EQ(std::memcmp(data, bytes_.data() + tensor->offset_bytes, tensor->size_bytes), 0) << tensor->name;
  }
  EXPECT_EQ(store->find(*file_.find_tensor("blk.0.ffn_up_exps.weight")), nullptr);
}

TEST_F(PinnedWeights, ArriveThroughShortReadsAndInterruptions) {
  storage::FaultPlan faults;
  faults.short_read_rate = 0.5;
  faults.eintr_rate = 0.2;
  faults.eagain_rate = 0.2;
  faults.delay_rate = 0.3;
  faults.reorder = true;
  auto store = open(&faults);
  store->load_pinned(pinned_, {}, test::takes_all);
  for (const auto* tensor : pinned_) {
    EXPECT_EQ(std::memcmp(store->find(*tensor), bytes_.data() + tensor->offset_bytes, tensor->size_bytes), 0)
        << tensor->name;
  }
}

TEST_F(PinnedWeights, FailureNamesTensorAndOffset) {
  const auto* victim = file_.find_tensor("blk.1.attn_output.weight");
  storage::FaultPlan faults;
  faults.failing_ranges.push_back({victim->offset_bytes + 5000, victim->offset_bytes + 5001, 5});
  auto store = open(&faults);
  try {
    store->load_pinned(pinned_, {}, test::takes_all);
    FAIL() << "the read error was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("offset"), std::string::npos) << error.what();
  }
}

TEST_F(PinnedWeights, ABlockThatWasGivenBackLeavesTheOthersAlone) {
  const std::vector<TensorBlock> blocks = {
      {file_.find_tensor("blk.0.attn_q.weight"), file_.find_tensor("blk.0.attn_k.weight")},
      {file_.find_tensor("blk.1.attn_output.weight")}};
  std::vector<const gguf::TensorInfo*> rest;
  for (const auto* tensor : pinned_) {
    if (tensor != blocks[0][0] && tensor != blocks[0][1] && tensor != blocks[1][0]) rest.push_back(tensor);
  }
  auto store = open();
  store->load_pinned(rest, blocks, test::takes_all);
  const std::uint64_t all = store->pinned_bytes();
  const auto expect_intact = [&](const gguf::TensorInfo& tensor) {
    EXPECT_EQ(std::memcmp(store->find(tensor), bytes_.data() + tensor.offset_bytes, tensor.size_bytes), 0)
        << tensor.name;
  };
  for (const auto* tensor : pinned_) expect_intact(*tensor);
  const std::byte* const place = store->find(*blocks[0][1]);
  store->release_block(0);
  EXPECT_EQ(store->pinned_bytes(), all - store->block_bytes(0));
  for (const auto* tensor : rest) expect_intact(*tensor);
  expect_intact(*blocks[1][0]);
  for (const auto* tensor : blocks[0]) {
    const std::byte* const data = store->find(*tensor);
    EXPECT_TRUE(std::all_of(data, data + tensor->size_bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
  ASSERT_TRUE(store->restore_block(0));
  EXPECT_EQ(store->pinned_bytes(), all);
  EXPECT_EQ(store->find(*blocks[0][1]), place);
  for (const auto* tensor : blocks[0]) {
    std::memcpy(store->find(*tensor), bytes_.data() + tensor->offset_bytes, tensor->size_bytes);
    expect_intact(*tensor);
  }
  for (const auto* tensor : rest) expect_intact(*tensor);
}

TEST(PinnedLayout, JoinsNeighboursAndKeepsOthersApart) {
  gguf::TensorInfo a, b, c, d;
  a.offset_bytes = 100, a.size_bytes = 5000;
  b.offset_bytes = 5120, b.size_bytes = 100;
  c.offset_bytes = 100'000, c.size_bytes = 10;
  d.shard_idx = 1, d.offset_bytes = 100'010, d.size_bytes = 10;
  const std::array<const gguf::TensorInfo*, 4> tensors = {&a, &b, &c, &d};
  const PinnedLayout layout = plan_pinned(tensors, 4096);
  ASSERT_EQ(layout.runs.size(), 3u);
  EXPECT_EQ(layout.runs[0].window.offset, 0u);
  EXPECT_EQ(layout.runs[0].window.length, 8192u);
  EXPECT_EQ(layout.tensor_offsets[0], 100u);
  EXPECT_EQ(layout.tensor_offsets[1], 5120u);
  EXPECT_EQ(layout.tensor_offsets[2], 8192u + 100'000 % 4096);
  EXPECT_EQ(layout.region_bytes, 8192u + 4096 + 4096);
  EXPECT_EQ(layout.weight_bytes, 5120u);
}

TEST(PinnedLayout, BlocksShareNoByteOfTheRegionWithAnythingElse) {
  gguf::TensorInfo all[4];
  for (std::size_t i = 0; i < 4; ++i) all[i].offset_bytes = 1000 * i, all[i].size_bytes = 1000;
  const std::array<const gguf::TensorInfo*, 2> rest = {&all[0], &all[2]};
  const std::vector<TensorBlock> blocks = {{&all[3], &all[1]}};
  const PinnedLayout layout = plan_pinned(rest, 512, blocks);
  ASSERT_EQ(layout.blocks.size(), 1u);
  ASSERT_EQ(layout.tensors.size(), 4u);
  const PinnedLayout::Area& area = layout.blocks[0];
  EXPECT_EQ(area.offset + area.bytes, layout.region_bytes);
  for (std::size_t i = 0; i < 4; ++i) {
    const bool is_inside = layout.tensors[i] == &all[1] || layout.tensors[i] == &all[3];
    EXPECT_EQ(layout.tensor_offsets[i] >= area.offset, is_inside) << i;
    EXPECT_LE(layout.tensor_offsets[i] + 1000, is_inside ? layout.region_bytes : area.offset) << i;
    EXPECT_EQ(layout.tensor_offsets[i] % 512, layout.tensors[i]->offset_bytes % 512) << i;
  }
}

}  // namespace
}  // namespace sluice::residency
