// Goal: gathered rows are those of the file, in the order asked for, however many and through faults.
#include "residency/row_gather.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "sluice/error.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {
namespace {

constexpr std::uint32_t k_max_rows = 100;

class Gather : public ::testing::Test {
 protected:
  Gather() : path_(test::write_tiny_model(dir_.path(), {})), bytes_(test::read_bytes(path_)) {
    file_ = test::parse_bytes(bytes_);
    table_ = file_.find_tensor("token_embd.weight");
    row_bytes_ = gguf::row_bytes(table_->type, table_->dims[0]);
    std::vector<std::unique_ptr<storage::File>> files;
    files.push_back(storage::File::open(path_.string(), true));
    store_ = std::make_unique<WeightStore>(std::move(files), queue({}));
  }
  static std::unique_ptr<storage::ReadQueue> queue(const storage::FaultPlan& faults) {
    return std::make_unique<storage::ReadQueue>(
        storage::make_fault_backend(storage::make_pread_backend(8, 2), faults),
        storage::ReadQueue::Options{});
  }
  void expect_rows(RowGather& gather, const std::vector<std::int32_t>& ids) {
    const std::byte* rows = gather.gather(ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto offset = table_->offset_bytes + static_cast<std::uint64_t>(ids[i]) * row_bytes_;
      EXPECT_EQ(std::memcmp(rows + i * row_bytes_, bytes_.data() + offset, row_bytes_), 0) << "row " << i;
    }
  }
  std::vector<std::int32_t> ids(std::size_t n) const {
    std::vector<std::int32_t> result;
    for (std::size_t i = 0; i < n; ++i)
      result.push_back(static_cast<std::int32_t>((i * i * 7 + 3 * i) % table_->dims[1]));
    return result;
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
  gguf::ModelFile file_;
  const gguf::TensorInfo* table_ = nullptr;
  std::uint64_t row_bytes_ = 0;
  std::unique_ptr<WeightStore> store_;
};

TEST_F(Gather, GivesTheRowsOfTheFile) {
  RowGather gather(*table_, *store_, k_max_rows, queue({}));
  for (const std::size_t n : {1u, 2u, 31u, 32u, 33u, k_max_rows}) expect_rows(gather, ids(n));
  expect_rows(gather, {static_cast<std::int32_t>(table_->dims[1] - 1), 0, 0});
}

TEST_F(Gather, GivesTheRowsThroughFaults) {
  storage::FaultPlan faults;
  faults.short_read_rate = 0.3;
  faults.eintr_rate = 0.3;
  faults.delay_rate = 0.3;
  faults.full_rate = 0.3;
  faults.reorder = true;
  RowGather gather(*table_, *store_, k_max_rows, queue(faults));
  for (int i = 0; i < 5; ++i) expect_rows(gather, ids(k_max_rows));
}

TEST_F(Gather, AFailedReadNamesTensorAndOffsetAndOthersStillWork) {
  storage::FaultPlan faults;
  const std::uint64_t bad = table_->offset_bytes + table_->size_bytes - 1;
  faults.failing_ranges.push_back({bad, bad + 1, EIO});
  RowGather gather(*table_, *store_, k_max_rows, queue(faults));
  std::vector<std::int32_t> all = ids(k_max_rows);
  all[40] = static_cast<std::int32_t>(table_->dims[1] - 1);
  try {
    gather.gather(all);
    FAIL() << "the read error was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("token_embd.weight"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("offset"), std::string::npos) << error.what();
  }
  expect_rows(gather, {0, 1, 2});
}

TEST_F(Gather, AFailedBackendIsAnErrorEachTime) {
  storage::FaultPlan faults;
  faults.fails_at_wait = 3;
  faults.delay_rate = 0.5;
  RowGather gather(*table_, *store_, k_max_rows, queue(faults));
  for (int i = 0; i < 3; ++i) EXPECT_THROW(gather.gather(ids(k_max_rows)), Error);
}

}  // namespace
}  // namespace sluice::residency
