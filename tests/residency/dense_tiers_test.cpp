// Goal: blocks leave memory for the ring and come back at any point of a pass, and every product still finds
// the file's rows, in memory or in the ring. Method: a tiny dense model on disk, passes that take each matrix
// where it should be, with memory that changes at random.
#include "residency/dense_tiers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/random.hpp"
#include "sluice/error.hpp"
#include "support/takes_all.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {
namespace {

class Tiers : public ::testing::Test {
 protected:
  static constexpr std::uint32_t k_n_layers = 4;
  Tiers() {
    test::TinyModel model;
    model.n_experts = 0;
    model.architecture = "qwen3";
    model.n_layers = k_n_layers;
    model.n_embd = 256;
    model.n_ff = 1500;  // Two chunks of 1 MiB each, in f32.
    path_ = test::write_tiny_model(dir_.path(), model);
    bytes_ = test::read_bytes(path_);
    file_ = test::parse_bytes(bytes_);
    for (std::uint32_t layer = 0; layer < k_n_layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      const auto add = [&](Role role, std::initializer_list<const char*> names, bool is_pinned) {
        PlacedBlock block{role, {}, is_pinned};
        for (const char* name : names) block.tensors.push_back(file_.find_tensor(prefix + name + ".weight"));
        tensors_.insert(tensors_.end(), block.tensors.begin(), block.tensors.end());
        streamed_.insert(streamed_.end(), block.tensors.size(), !is_pinned);
        blocks_.push_back(block);
      };
      add(Role::attention, {"attn_q", "attn_k", "attn_v", "attn_output"}, true);
      add(Role::dense_ffn, {"ffn_gate", "ffn_up", "ffn_down"}, layer != 1);
    }
  }
  static std::unique_ptr<storage::ReadQueue> queue(const storage::FaultPlan& faults,
                                                   std::size_t max_requests) {
    storage::ReadQueue::Options options;
    options.max_requests = max_requests;
    return std::make_unique<storage::ReadQueue>(
        storage::make_fault_backend(storage::make_pread_backend(4, 2), faults), options);
  }
  void open(std::uint32_t n_slots, const storage::FaultPlan& faults = {}) {
    tiers_.reset();
    stream_.reset();  // Its reads in flight use the store's files, so it goes before the store.
    std::vector<std::unique_ptr<storage::File>> files;
    files.push_back(storage::File::open(path_.string(), true));
    store_ = std::make_unique<WeightStore>(std::move(files), queue({}, 64));
    std::vector<const gguf::TensorInfo*> rest;
    for (const gguf::TensorInfo& tensor : file_.tensors) {
      if (std::find(tensors_.begin(), tensors_.end(), &tensor) == tensors_.end()) rest.push_back(&tensor);
    }
    std::vector<TensorBlock> pinned;
    for (const PlacedBlock& block : blocks_) {
      if (block.is_pinned) pinned.push_back(block.tensors);
    }
    store_->load_pinned(rest, pinned, test::takes_all);
    stream_ = std::make_unique<DenseStream>(tensors_, n_slots, *store_, queue(faults, n_slots), streamed_);
    tiers_ = std::make_unique<DenseTiers>(blocks_, *store_, *stream_);
    for (const gguf::TensorInfo* tensor : rest) rest_.push_back(tensor);
  }
  const std::byte* in_file(const gguf::TensorInfo& tensor) const {
    return bytes_.data() + tensor.offset_bytes;
  }
  /// Compares the next `n` tensors with the file, wherever they are.
  void use(std::uint32_t first, std::uint32_t n) {
    for (std::uint32_t i = first + 1; i < first + n; ++i)
      ASSERT_EQ(stream_->is_streamed(i), stream_->is_streamed(first));
    if (!stream_->is_streamed(first)) {
      for (std::uint32_t i = first; i < first + n; ++i) {
        const gguf::TensorInfo& tensor = *tensors_[i];
        ASSERT_EQ(std::memcmp(store_->find(tensor), in_file(tensor), tensor.size_bytes), 0) << tensor.name;
      }
      return;
    }
    ++n_streamed_;
    std::uint64_t n_bytes = 0, expected = 0;
    for (std::uint32_t i = first; i < first + n; ++i) expected += tensors_[i]->size_bytes;
    std::array<DenseStream::Part, 3> parts;
    while (const std::size_t n_parts = stream_->next(first + n, parts)) {
      for (const DenseStream::Part& part : std::span(parts).first(n_parts)) {
        const gguf::TensorInfo& tensor = *tensors_[part.tensor];
        const std::uint64_t row_bytes = gguf::row_bytes(tensor.type, tensor.dims[0]);
        ASSERT_EQ(
            std::memcmp(part.data, in_file(tensor) + part.first_row * row_bytes, part.n_rows * row_bytes), 0)
            << tensor.name << " from row " << part.first_row;
        n_bytes += part.n_rows * row_bytes;
      }
      stream_->release();
    }
    ASSERT_EQ(n_bytes, expected) << tensors_[first]->name;
  }
  /// One pass as the engine makes it; `between` is called before each product.
  template <typename F>
  void pass(F&& between) {
    stream_->begin_pass();
    for (std::uint32_t layer = 0; layer < k_n_layers; ++layer) {
      const std::uint32_t first = 7 * layer;
      for (const auto& [next, n] :
           {std::pair{first, 3u}, {first + 3, 1u}, {first + 4, 2u}, {first + 6, 1u}}) {
        tiers_->end_returns(next);
        between(next);
        use(next, n);
        if (HasFatalFailure()) return;
      }
    }
  }
  void pass() {
    pass([](std::uint32_t) {});
  }
  void expect_the_rest_is_intact() {
    for (const gguf::TensorInfo* tensor : rest_)
      EXPECT_EQ(std::memcmp(store_->find(*tensor), in_file(*tensor), tensor->size_bytes), 0) << tensor->name;
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
  gguf::ModelFile file_;
  std::vector<PlacedBlock> blocks_;
  std::vector<const gguf::TensorInfo*> tensors_, rest_;
  std::vector<bool> streamed_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<DenseStream> stream_;
  std::unique_ptr<DenseTiers> tiers_;
  int n_streamed_ = 0;
};

TEST_F(Tiers, ABlockThatGaveWayIsStreamedAndComesBackWhole) {
  open(6);
  const std::uint64_t planned = tiers_->planned_bytes(), pinned = store_->pinned_bytes();
  pass();
  const int n_before = n_streamed_;
  pass([&](std::uint32_t next) {
    if (next == 0) {
      EXPECT_TRUE(tiers_->resize(planned - 1, next));
    }
  });
  EXPECT_LT(tiers_->bytes(), planned);
  EXPECT_EQ(pinned - store_->pinned_bytes(), planned - tiers_->bytes());
  EXPECT_EQ(tiers_->statistics().n_released, 1u);
  EXPECT_EQ(n_streamed_, n_before + 2 + 2) << "one feed-forward block more, in two products";
  pass([&](std::uint32_t next) {
    if (next == 0) {
      EXPECT_TRUE(tiers_->resize(planned, next));
    }
  });
  EXPECT_EQ(tiers_->bytes(), planned);
  EXPECT_EQ(store_->pinned_bytes(), pinned);
  n_streamed_ = 0;
  pass();
  EXPECT_EQ(n_streamed_, 2) << "only what the plan streams";
  expect_the_rest_is_intact();
}

TEST_F(Tiers, EveryChangeAtAnyPointOfAPassFindsTheFilesRows) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    storage::FaultPlan faults;
    faults.seed = seed;
    if (seed % 2 == 0) {
      faults.short_read_rate = 0.3;
      faults.eintr_rate = 0.2;
      faults.delay_rate = 0.3;
      faults.full_rate = 0.2;
      faults.reorder = true;
    }
    open(seed < 4 ? 4 : 24, faults);
    base::SplitMix64 random(seed);
    for (int i = 0; i < 40; ++i) {
      pass([&](std::uint32_t next) {
        if (random.below(5) != 0) return;
        const std::uint64_t bytes = random.below(tiers_->planned_bytes() + 1);
        tiers_->resize(random.below(3) == 0 ? tiers_->planned_bytes() : bytes, next);
        if (random.below(8) == 0) tiers_->resize(random.below(tiers_->planned_bytes() + 1), next);
        ASSERT_LE(tiers_->bytes(), tiers_->planned_bytes());
      });
      if (HasFatalFailure()) return;
      if (random.below(4) == 0) {  // A pass that is given up.
        stream_->begin_pass();
        use(0, 3);
        tiers_->resize(random.below(tiers_->planned_bytes() + 1), 3);
      }
    }
    EXPECT_GT(tiers_->statistics().n_released, 20u);
    EXPECT_GT(tiers_->statistics().n_returned, 20u);
    expect_the_rest_is_intact();
  }
}

TEST_F(Tiers, ComingBackReadsNothingOfItsOwn) {
  open(4);
  pass([&](std::uint32_t next) {
    if (next == 0) tiers_->resize(0, next);
  });
  // What the ring has read ahead may be read again, but not more.
  const auto requested = [&] { return stream_->io_statistics().requested_bytes; };
  const std::uint64_t before = requested();
  pass();
  const std::uint64_t of_a_pass = requested() - before;
  pass([&](std::uint32_t next) {
    if (next == 0) tiers_->resize(tiers_->planned_bytes(), next);
  });
  EXPECT_LE(requested() - before - of_a_pass, of_a_pass + stream_->ring_bytes());
  EXPECT_EQ(tiers_->bytes(), tiers_->planned_bytes());
  n_streamed_ = 0;
  pass();
  EXPECT_EQ(n_streamed_, 2);
}

TEST_F(Tiers, AFailedReadWhileComingBackEndsThePassAndTheNextBringsTheBlock) {
  storage::FaultPlan faults;
  const gguf::TensorInfo& victim = *file_.find_tensor("blk.0.ffn_up.weight");
  auto fails = std::make_shared<bool>(false);
  faults.failing_ranges.push_back({victim.offset_bytes + 8192, victim.offset_bytes + 8193, EIO});
  faults.applies_to = [fails](int) { return *fails; };
  open(4, faults);
  pass([&](std::uint32_t next) {
    if (next == 0) tiers_->resize(0, next);
  });
  *fails = true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      pass([&](std::uint32_t next) {
        if (next == 0) tiers_->resize(tiers_->planned_bytes(), next);
      });
      FAIL() << "the read error was not reported";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_NE(std::string(error.what()).find(victim.name), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(stream_->is_streamed(5)) << "its rows are not all there";
  *fails = false;
  pass();
  EXPECT_FALSE(stream_->is_streamed(5));
  pass();
}

TEST_F(Tiers, WhatFitsStreamsOnceItGaveMemoryBackAndFitsAgain) {
  for (PlacedBlock& block : blocks_) block.is_pinned = true;
  streamed_.assign(streamed_.size(), false);
  open(4);
  const std::uint64_t planned = tiers_->planned_bytes();
  EXPECT_FALSE(stream_->is_streaming());
  pass();
  EXPECT_EQ(n_streamed_, 0);
  base::SplitMix64 random(3);
  for (int i = 0; i < 30; ++i) {
    const std::uint64_t wanted = random.below(planned);
    pass([&](std::uint32_t next) {
      if (next != 7 * (random.next() % k_n_layers)) return;
      const std::uint64_t before = tiers_->bytes();
      const std::uint64_t ring = stream_->is_streaming() ? stream_->ring_bytes() : 0;
      tiers_->resize(wanted, next);
      if (tiers_->bytes() < before && ring == 0) {
        EXPECT_LE(tiers_->bytes(), wanted - std::min(wanted, stream_->ring_bytes())) << "room for the ring";
      }
      EXPECT_TRUE(tiers_->bytes() == planned || stream_->is_streaming());
    });
    if (random.below(3) == 0) {
      stream_->begin_pass();
      if (stream_->is_streamed(0)) use(0, 3);  // A pass that is given up, and one who waits.
      tiers_->resize_between_passes(random.below(planned));
    }
    if (random.below(3) != 0) continue;
    pass([&](std::uint32_t next) { tiers_->resize(planned, next); });
    pass();
    EXPECT_FALSE(stream_->is_streaming());
    n_streamed_ = 0;
    const std::uint64_t before = stream_->io_statistics().requested_bytes;
    pass();
    EXPECT_EQ(n_streamed_, 0);
    EXPECT_EQ(stream_->io_statistics().requested_bytes, before) << "what fits is not read";
  }
  EXPECT_GT(tiers_->statistics().n_released, 20u);
  EXPECT_GT(tiers_->statistics().n_returned, 20u);
  expect_the_rest_is_intact();
}

TEST_F(Tiers, WhatIsFarFromTheRingsReadAheadDoesNotDisturbIt) {
  open(3);
  pass();
  stream_->begin_pass();
  use(0, 3);
  const std::uint64_t before = stream_->io_statistics().requested_bytes;
  const std::uint64_t planned = tiers_->planned_bytes();
  // The ring holds the start of layer 1's feed-forward block; the one that leaves first is behind it in this
  // pass.
  ASSERT_TRUE(tiers_->resize(planned - 1, 7 * 1));
  EXPECT_EQ(stream_->io_statistics().requested_bytes, before);
}

}  // namespace
}  // namespace sluice::residency
