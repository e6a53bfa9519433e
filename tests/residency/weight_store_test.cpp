// Goal: pinned tensors arrive byte for byte, neighbours share a read, and a failed read names its tensor.
#include "residency/weight_store.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "sluice/error.hpp"
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
  store->load_pinned(pinned_);
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
  store->load_pinned(pinned_);
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
    store->load_pinned(pinned_);
    FAIL() << "the read error was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("offset"), std::string::npos) << error.what();
  }
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

}  // namespace
}  // namespace sluice::residency
