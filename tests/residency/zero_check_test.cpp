// Goal: weights that were never written are found, at open, pinned and streamed; zeros that are right are
// not.
#include "residency/zero_check.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "sluice/error.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::byte> ones(std::size_t n) {
  return std::vector<std::byte>(n, std::byte{1});
}

void clear(std::vector<std::byte>& data, std::size_t begin, std::size_t end) {
  std::fill(data.begin() + static_cast<std::ptrdiff_t>(begin),
            data.begin() + static_cast<std::ptrdiff_t>(end), std::byte{0});
}

TEST(FindZeros, ASmallPartCountsOnlyWhenAllOfItIsZero) {
  for (const std::size_t n : {1u, 63u, 64u, 65u, 5000u, 65'536u}) {
    std::vector<std::byte> data(n);
    const auto found = find_zeros(data, 4);
    ASSERT_TRUE(found) << n;
    EXPECT_EQ(found->offset_bytes, 0u);
    EXPECT_EQ(found->bytes, n);
    data.back() = std::byte{1};
    EXPECT_FALSE(find_zeros(data, 4)) << n;
    EXPECT_FALSE(find_zeros(ones(n), 4)) << n;
  }
  EXPECT_FALSE(find_zeros({}, 4));
}

TEST(FindZeros, EveryLongRunOfALargePartIsFoundButForItsEnd) {
  constexpr std::size_t k_runs = 40, k_size = k_runs * k_zero_run_bytes;
  for (std::size_t run = 0; run + 2 <= k_runs; ++run) {
    std::vector<std::byte> data = ones(k_size);
    // Not aligned: twice the length contains an aligned one.
    const std::size_t begin = run * k_zero_run_bytes + 77;
    clear(data, begin, std::min(k_size, begin + 2 * k_zero_run_bytes));
    const bool is_padding = (run + 1) * k_zero_run_bytes >= k_size / 8 * 7;
    EXPECT_EQ(find_zeros(data, k_size).has_value(), !is_padding) << run;
  }
  std::vector<std::byte> data = ones(k_size);
  clear(data, 0, k_zero_run_bytes - 1);
  EXPECT_FALSE(find_zeros(data, k_size)) << "shorter than a run";
}

TEST(FindZeros, FewPlacesFindAPartThatIsZeroAsAWhole) {
  for (std::size_t n_runs = 1; n_runs < 30; ++n_runs) {
    const std::vector<std::byte> data(n_runs * k_zero_run_bytes + 100);
    for (const std::size_t n_places : {0u, 1u, 4u, 1000u}) EXPECT_TRUE(find_zeros(data, n_places)) << n_runs;
  }
}

TEST(ZeroRules, FollowRoleAndShape) {
  const auto rule = [](const char* name, std::vector<std::uint64_t> dims) {
    gguf::TensorInfo tensor;
    tensor.name = name;
    tensor.n_dims = static_cast<std::uint32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), tensor.dims.begin());
    return zero_rule(tensor);
  };
  EXPECT_EQ(rule("token_embd.weight", {64, 100}), ZeroRule::by_row);
  EXPECT_EQ(rule("output.weight", {64, 100}), ZeroRule::by_row);
  EXPECT_EQ(rule("blk.3.attn_q.weight", {64, 64}), ZeroRule::no_run);
  EXPECT_EQ(rule("blk.3.ffn_down.weight", {64, 64}), ZeroRule::no_run);
  EXPECT_EQ(rule("blk.3.ffn_gate_exps.weight", {64, 64, 8}), ZeroRule::no_run);
  EXPECT_EQ(rule("blk.3.ffn_gate.7.weight", {64, 64}), ZeroRule::no_run);
  EXPECT_EQ(rule("blk.3.attn_q.bias", {64}), ZeroRule::allowed);
  EXPECT_EQ(rule("blk.3.ffn_gate_exps.bias", {64, 8}), ZeroRule::allowed);
  EXPECT_EQ(rule("blk.3.attn_norm.weight", {64}), ZeroRule::allowed);
  EXPECT_EQ(rule("mm.something.weight", {64, 64}), ZeroRule::allowed);
}

class ZeroFiles : public ::testing::Test {
 protected:
  ZeroFiles() {
    model_.n_embd = 256;
    model_.n_ff = 256;
    path_ = test::write_tiny_model(dir_.path(), model_);
    bytes_ = test::read_bytes(path_);
    file_ = test::parse_bytes(bytes_);
  }
  const gguf::TensorInfo& tensor(const std::string& name) const { return *file_.find_tensor(name); }
  std::string checked(std::size_t n_samples = 1) {
    file_.shards[0].path = path_.string();
    std::vector<std::unique_ptr<storage::File>> shards;
    shards.push_back(storage::File::open(path_.string(), true));
    std::uint64_t read_bytes = 0;
    try {
      check_weights(
          file_, shards, n_samples, [this](std::uint64_t row) { return is_trained_(row); }, &read_bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_file);
      return error.what();
    }
    EXPECT_GT(read_bytes, 0u);
    return "";
  }
  /// Zeros that were written, which no file system knows.
  void write_zeros(std::uint64_t begin, std::uint64_t end) {
    std::vector<std::byte> bytes = bytes_;
    clear(bytes, begin, end);
    test::write_bytes(path_, bytes.data(), bytes.size());
  }
  /// The same as a hole.
  void write_hole(std::uint64_t begin, std::uint64_t end) {
    const int fd = open(path_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    const std::uint64_t n_behind = bytes_.size() - end;
    EXPECT_EQ(pwrite(fd, bytes_.data(), begin, 0), static_cast<ssize_t>(begin));
    EXPECT_EQ(pwrite(fd, bytes_.data() + end, n_behind, static_cast<off_t>(end)),
              static_cast<ssize_t>(n_behind));
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes_.size())), 0);
    close(fd);
  }

  std::function<bool(std::uint64_t)> is_trained_ = [](std::uint64_t) { return true; };
  test::TempDir dir_;
  test::TinyModel model_;
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
  gguf::ModelFile file_;
};

TEST_F(ZeroFiles, AGoodFileIsGood) {
  EXPECT_EQ(checked(), "");
  EXPECT_EQ(checked(16), "");
}

TEST_F(ZeroFiles, AZeroMatrixIsNamedWithItsBytes) {
  for (const char* name :
       {"blk.1.attn_q.weight", "blk.2.ffn_down_exps.weight", "token_embd.weight", "output.weight"}) {
    const gguf::TensorInfo& victim = tensor(name);
    const std::uint64_t begin = victim.offset_bytes, end = begin + victim.size_bytes;
    write_zeros(begin, end);
    EXPECT_THAT(checked(), AllOf(HasSubstr(path_.string()), HasSubstr(name), HasSubstr("all zero"),
                                 HasSubstr("Download it again")));
    write_hole(begin, end);
    EXPECT_THAT(checked(), HasSubstr(name));
  }
}

TEST_F(ZeroFiles, AHoleOverTheMiddleOfTheFileIsFound) {
  const std::uint64_t begin = file_.tensors.front().offset_bytes;
  const std::uint64_t size = bytes_.size() - begin;
  write_hole(begin + size / 100, begin + size / 10 * 6);
  EXPECT_THAT(checked(), HasSubstr("all zero"));
  write_hole(begin + size / 10 * 6, bytes_.size());
  EXPECT_THAT(checked(), HasSubstr("all zero"));
}

TEST_F(ZeroFiles, AHoleOfOneExpertIsFound) {
  const gguf::TensorInfo& victim = tensor("blk.0.ffn_up_exps.weight");
  const std::uint64_t part = victim.size_bytes / victim.dims[2];
  ASSERT_GE(part, k_zero_run_bytes);
  write_hole(victim.offset_bytes + 3 * part, victim.offset_bytes + 4 * part);
  const storage::FileRange all{0, bytes_.size()};
  const auto hole = storage::File::open(path_.string(), false)->next_hole(victim.offset_bytes + 3 * part);
  if (!hole || hole->end > all.end) GTEST_SKIP() << "this file system knows no holes";
  EXPECT_THAT(checked(), HasSubstr("blk.0.ffn_up_exps.weight"));
}

TEST_F(ZeroFiles, RowsOfWordsAreNotZeroButForPadding) {
  const gguf::TensorInfo& embedding = tensor("token_embd.weight");
  const std::uint64_t begin = embedding.offset_bytes, size = embedding.size_bytes;
  ASSERT_GE(size / 4, k_zero_run_bytes);
  const auto write = [&](bool as_hole, double from, double to) {
    const auto at = [&](double share) {
      return begin + static_cast<std::uint64_t>(share * static_cast<double>(size));
    };
    if (as_hole) {
      write_hole(at(from), at(to));
    } else {
      write_zeros(at(from), at(to));
    }
  };
  for (const bool as_hole : {false, true}) {
    for (const double from : {0.0, 0.1, 0.45}) {
      write(as_hole, from, from + 0.4);
      is_trained_ = [](std::uint64_t) { return true; };
      EXPECT_THAT(checked(), HasSubstr("token_embd.weight")) << from << as_hole;
      // Reserved tokens, which no text has.
      const std::uint64_t n_rows = embedding.dims[1];
      is_trained_ = [=](std::uint64_t row) {
        const double share = static_cast<double>(row) / static_cast<double>(n_rows);
        return share < from || share > from + 0.4;
      };
      EXPECT_EQ(checked(), "") << from << as_hole;
    }
    is_trained_ = [](std::uint64_t) { return true; };
    write(as_hole, 0.6, 1.0);
    EXPECT_EQ(checked(), "") << as_hole;
    write(as_hole, 0.2, 1.0);
    EXPECT_THAT(checked(), HasSubstr("token_embd.weight")) << as_hole;
  }
}

TEST_F(ZeroFiles, PaddingAndVectorsMayBeZero) {
  const gguf::TensorInfo& embedding = tensor("token_embd.weight");
  write_zeros(embedding.offset_bytes + embedding.size_bytes / 3 * 2,
              embedding.offset_bytes + embedding.size_bytes);
  EXPECT_EQ(checked(16), "");
  const gguf::TensorInfo& norm = tensor("blk.1.attn_norm.weight");
  write_zeros(norm.offset_bytes, norm.offset_bytes + norm.size_bytes);
  EXPECT_EQ(checked(16), "");
  const gguf::TensorInfo& matrix = tensor("blk.1.attn_q.weight");
  write_zeros(matrix.offset_bytes + matrix.size_bytes / 8 * 7, matrix.offset_bytes + matrix.size_bytes);
  EXPECT_EQ(checked(16), "");
}

}  // namespace
}  // namespace sluice::residency
