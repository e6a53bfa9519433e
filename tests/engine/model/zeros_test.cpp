// Goal: weights that are zero where they were never written end in an error, wherever the weights lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class ZeroWeights : public ::testing::TestWithParam<bool> {
 protected:
  /// `share` of the way from the smallest budget to one that holds everything.
  void make(const test::TinyModel& model, double share) {
    path_ = test::write_tiny_model(dir_.path(), model);
    file_ = test::parse_bytes(test::read_bytes(path_));
    options_.n_ctx = 64;
    options_.prefill_chunk = 4;
    hooks_.process_bytes = 0;
    const Plan plan = engine::open_model(path_, options_, hooks_).plan();
    options_.memory_bytes =
        plan.floor_bytes +
        static_cast<std::uint64_t>(share * static_cast<double>(plan.resident_from_bytes - plan.floor_bytes));
  }
  void clear(std::uint64_t begin, std::uint64_t end) {
    std::vector<std::byte> bytes = test::read_bytes(path_);
    std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
              bytes.begin() + static_cast<std::ptrdiff_t>(end), std::byte{0});
    test::write_bytes(path_, bytes.data(), bytes.size());
  }
  /// What opening the model and a few passes end with; empty when all is well.
  std::string message() {
    try {
      Model model = engine::open_model(path_, options_, hooks_);
      is_streamed_ = model.plan().streamed_bytes != 0;
      Sequence sequence = model.new_sequence();
      for (TokenId token = 0; token < 40; ++token) {
        const StepItem item{&sequence, {&token, 1}, LogitsWanted::none};
        model.step({&item, 1}, {});
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_file) << error.what();
      return error.what();
    }
    return "";
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  gguf::ModelFile file_;
  OpenOptions options_;
  engine::Hooks hooks_;
  std::optional<bool> is_streamed_;
};

test::TinyModel wide(std::uint32_t n_experts) {
  test::TinyModel model;
  model.n_embd = 256;
  model.n_ff = 512;
  model.n_experts = n_experts;
  if (n_experts == 0) model.architecture = "qwen3";
  return model;
}

TEST_P(ZeroWeights, OfOneExpertAreRefusedWhenItIsRead) {
  make(wide(8), GetParam() ? 0.3 : 2.0);
  EXPECT_EQ(message(), "");
  EXPECT_EQ(is_streamed_, GetParam());
  // Not where opening looks: it reads one block in the middle of the tensor.
  const gguf::TensorInfo& tensor = *file_.find_tensor("blk.1.ffn_up_exps.weight");
  const std::uint64_t part = tensor.size_bytes / 8;
  clear(tensor.offset_bytes, tensor.offset_bytes + part);
  clear(tensor.offset_bytes + part, tensor.offset_bytes + 2 * part);
  is_streamed_.reset();
  EXPECT_THAT(message(), testing::AllOf(HasSubstr(path_.string()), HasSubstr("blk.1.ffn_up_exps.weight"),
                                        HasSubstr("all zero")));
  EXPECT_EQ(is_streamed_.has_value(), GetParam()) << "what is read at open is checked there";
}

TEST_P(ZeroWeights, InADenseMatrixAreRefusedWhenTheyAreRead) {
  make(wide(0), GetParam() ? 0.1 : 2.0);
  EXPECT_EQ(message(), "");
  EXPECT_EQ(is_streamed_, GetParam());
  const gguf::TensorInfo& tensor = *file_.find_tensor("blk.2.ffn_gate.weight");
  clear(tensor.offset_bytes, tensor.offset_bytes + tensor.size_bytes / 4);
  EXPECT_THAT(message(), testing::AllOf(HasSubstr("blk.2.ffn_gate.weight"), HasSubstr("all zero")));
}

INSTANTIATE_TEST_SUITE_P(Placement, ZeroWeights, ::testing::Bool(),
                         [](const auto& placement) { return placement.param ? "Streamed" : "Resident"; });

TEST(ZeroWeightsInspect, AFileThatWasNeverFilledIsNotRunnable) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size / 2);
  std::filesystem::resize_file(path, size);
  const Inspection inspection = inspect(path);
  EXPECT_FALSE(inspection.runnable);
  EXPECT_THAT(inspection.why_not, HasSubstr("all zero"));
  DoctorOptions options;
  options.path = path;
  options.sample_ms = 0;
  const std::vector<Finding> findings = examine(options);
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.severity == Severity::problem && finding.text.find("all zero") != std::string::npos;
  }));
}

}  // namespace
}  // namespace sluice
