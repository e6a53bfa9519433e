// Goal: the ring hands out every row of every streamed matrix once a pass, in order, byte for byte, whatever
// its size, the drive's mood, and the way the pass before ended. Method: a tiny model on disk.
#include "residency/dense_stream.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "sluice/error.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {
namespace {

class Stream : public ::testing::Test {
 protected:
  Stream() {
    test::TinyModel model;
    model.n_experts = 0;
    model.architecture = "qwen3";
    model.n_ff = 3000;  // Several chunks of 1 MiB in f32: 64 columns make a row of 256 bytes.
    model.n_embd = 256;
    path_ = test::write_tiny_model(dir_.path(), model);
    bytes_ = test::read_bytes(path_);
    file_ = test::parse_bytes(bytes_);
    for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight",
                             "blk.2.attn_q.weight", "blk.2.ffn_gate.weight"})
      tensors_.push_back(file_.find_tensor(name));
    std::vector<std::unique_ptr<storage::File>> files;
    files.push_back(storage::File::open(path_.string(), true));
    store_ = std::make_unique<WeightStore>(std::move(files), queue({}));
  }
  static std::unique_ptr<storage::ReadQueue> queue(const storage::FaultPlan* faults,
                                                   std::size_t max_requests = 64) {
    auto backend = storage::make_pread_backend(4, 2);
    if (faults != nullptr) backend = storage::make_fault_backend(std::move(backend), *faults);
    storage::ReadQueue::Options options;
    options.max_requests = max_requests;
    return std::make_unique<storage::ReadQueue>(std::move(backend), options);
  }
  std::unique_ptr<DenseStream> open(std::uint32_t n_slots, const storage::FaultPlan* faults = nullptr) {
    return std::make_unique<DenseStream>(tensors_, n_slots, *store_, queue(faults, n_slots));
  }
  /// Takes tensors up to `end_tensor` and compares each part with the file.
  void take(DenseStream& stream, std::uint32_t begin_tensor, std::uint32_t end_tensor,
            std::size_t at_once = 3) {
    std::vector<DenseStream::Part> parts(at_once);
    std::uint32_t tensor = begin_tensor, row = 0;
    while (const std::size_t n = stream.next(end_tensor, parts)) {
      for (std::size_t i = 0; i < n; ++i) {
        const DenseStream::Part& part = parts[i];
        ASSERT_EQ(part.tensor, tensor);
        ASSERT_EQ(part.first_row, row);
        const gguf::TensorInfo& info = *tensors_[tensor];
        const std::uint64_t row_bytes = gguf::row_bytes(info.type, info.dims[0]);
        ASSERT_EQ(std::memcmp(part.data, bytes_.data() + info.offset_bytes + row * row_bytes,
                              part.n_rows * row_bytes),
                  0)
            << info.name << " from row " << row;
        row += part.n_rows;
        if (row == info.dims[1]) {
          ++tensor;
          row = 0;
        }
      }
      stream.release();
    }
    ASSERT_EQ(tensor, end_tensor);
    ASSERT_EQ(row, 0u);
  }
  void whole_pass(DenseStream& stream, std::size_t at_once = 3) {
    stream.begin_pass();
    take(stream, 0, 3, at_once);
    take(stream, 3, 4, at_once);
    take(stream, 4, 5, at_once);
  }
  std::uint64_t stream_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto* tensor : tensors_) bytes += tensor->size_bytes;
    return bytes;
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
  gguf::ModelFile file_;
  std::vector<const gguf::TensorInfo*> tensors_;
  std::unique_ptr<WeightStore> store_;
};

TEST_F(Stream, GivesTheFilesRowsWithAnyRing) {
  ASSERT_GT(plan_stream(tensors_).chunks.size(), 10u);
  for (const std::uint32_t n_slots : {2u, 3u, 5u, 16u, 40u}) {
    for (const std::size_t at_once : {1u, 2u, 16u}) {
      const auto stream = open(n_slots);
      for (int pass = 0; pass < 4; ++pass) whole_pass(*stream, at_once);
    }
  }
}

TEST_F(Stream, GivesTheFilesRowsThroughFaults) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    storage::FaultPlan faults;
    faults.seed = seed;
    faults.short_read_rate = 0.3;
    faults.eintr_rate = 0.2;
    faults.eagain_rate = 0.2;
    faults.delay_rate = 0.3;
    faults.full_rate = 0.2;
    faults.reorder = true;
    const auto stream = open(5, &faults);
    for (int pass = 0; pass < 3; ++pass) whole_pass(*stream);
  }
}

TEST_F(Stream, ReadsEachByteOnceAPassAndAheadByNoMoreThanTheRing) {
  const auto stream = open(4);
  for (int pass = 0; pass < 10; ++pass) whole_pass(*stream);
  const storage::IoStatistics& io = stream->io_statistics();
  EXPECT_GE(io.requested_bytes, 10 * stream_bytes());
  EXPECT_LE(io.requested_bytes, 10 * stream_bytes() + 4 * stream_slot_bytes(tensors_, 1));
}

TEST_F(Stream, APassThatWasGivenUpDoesNotShiftTheNext) {
  const auto stream = open(6);
  stream->begin_pass();
  take(*stream, 0, 2);
  whole_pass(*stream);
  stream->begin_pass();
  std::array<DenseStream::Part, 2> held;
  ASSERT_NE(stream->next(5, held), 0u);  // Neither released nor finished.
  whole_pass(*stream);
  stream->begin_pass();  // Nothing taken at all.
  whole_pass(*stream);
}

TEST_F(Stream, AFailedReadNamesTensorAndOffsetAndTheNextPassMayTryAgain) {
  storage::FaultPlan faults;
  const gguf::TensorInfo& victim = *tensors_[2];
  faults.failing_ranges.push_back({victim.offset_bytes + 8192, victim.offset_bytes + 8193, EIO});
  const auto stream = open(8, &faults);
  for (int pass = 0; pass < 3; ++pass) {
    stream->begin_pass();
    take(*stream, 0, 2);
    std::array<DenseStream::Part, 4> parts;
    try {
      while (stream->next(5, parts) != 0) stream->release();
      FAIL() << "the read error was not reported";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_NE(std::string(error.what()).find("blk.0.ffn_down.weight"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("offset"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
    }
  }
}

TEST_F(Stream, KnowsItsTensors) {
  const auto stream = open(2);
  EXPECT_EQ(stream->find(tensors_[3]), 3);
  EXPECT_EQ(stream->find(file_.find_tensor("blk.1.ffn_up.weight")), -1);
  EXPECT_EQ(stream->find(nullptr), -1);
}

TEST(StreamLayout, ChunksAreEqualMultiplesOfSixteenRowsAndFitTheirSlots) {
  for (const std::uint64_t n_rows : {1u, 15u, 16u, 17u, 1000u, 4096u, 14336u}) {
    for (const std::uint64_t n_in : {32u, 4096u, 400'000u}) {
      gguf::TensorInfo tensor;
      tensor.type = gguf::TensorType::q8_0;
      tensor.dims = {n_in, n_rows, 1, 1};
      const std::array<const gguf::TensorInfo*, 1> tensors = {&tensor};
      const StreamLayout layout = plan_stream(tensors);
      std::uint32_t row = 0;
      for (const StreamChunk& chunk : layout.chunks) {
        EXPECT_EQ(chunk.first_row, row);
        EXPECT_TRUE(chunk.n_rows % 16 == 0 || row + chunk.n_rows == n_rows);
        EXPECT_LE(chunk.n_rows * gguf::row_bytes(tensor.type, n_in) + 2 * 4096 - 2,
                  stream_slot_bytes(tensors, 4096) + 4096);
        row += chunk.n_rows;
      }
      EXPECT_EQ(row, n_rows);
      EXPECT_EQ(layout.first_chunk.back(), layout.chunks.size());
    }
  }
}

TEST_F(Stream, AFailedBackendIsAnErrorInEveryPass) {
  for (std::uint64_t fails_at = 1; fails_at < 12; ++fails_at) {
    const storage::FaultPlan faults{.seed = fails_at, .delay_rate = 0.5, .fails_at_wait = fails_at};
    const auto stream = open(4, &faults);
    int n_errors = 0;
    for (int pass = 0; pass < 12; ++pass) {
      try {
        stream->begin_pass();
        take(*stream, 0, static_cast<std::uint32_t>(tensors_.size()));
        EXPECT_EQ(n_errors, 0) << "after an error nothing may be read";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        ++n_errors;
      }
    }
    EXPECT_GT(n_errors, 0);
  }
}

}  // namespace
}  // namespace sluice::residency
