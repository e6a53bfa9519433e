// Goal: opening accepts split files and refuses what it cannot run, with a message a user can act on.
#include <gtest/gtest.h>

#include <fstream>

#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

std::string refusal(const std::filesystem::path& path, ErrorCode code, const OpenOptions& options = {}) {
  try {
    Model::open(path, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << path << " was accepted";
  return {};
}

std::vector<float> logits_of(const std::filesystem::path& path) {
  Model model = Model::open(path);
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  std::vector<float> all;
  model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  });
  return all;
}

TEST(Open, SplitFilesGiveTheSameBitsFromAnyShard) {
  const test::TempDir dir;
  const auto whole = test::write_tiny_model(dir.path(), {});
  const auto shards = test::write_tiny_shards(dir.path(), {}, 3);
  const std::vector<float> expected = logits_of(whole);
  for (const auto& shard : shards) EXPECT_EQ(logits_of(shard), expected) << shard;
}

TEST(Open, EveryAlignmentThatIsAMultipleOfEightGivesTheSameBits) {
  const test::TempDir dir;
  const std::vector<float> expected = logits_of(test::write_tiny_model(dir.path(), {}));
  for (const std::uint32_t alignment : {8u, 24u, 40u, 64u, 1000u, 4096u, 65'536u}) {
    test::TinyModel model;
    model.alignment_bytes = alignment;
    EXPECT_EQ(logits_of(test::write_tiny_model(dir.path(), model)), expected) << alignment;
  }
}

TEST(Open, VectorsOfEveryFloatTypeGiveTheSameBits) {
  using gguf::TensorType;
  const test::TempDir dir;
  for (const char* architecture : {"qwen3moe", "qwen2"}) {
    test::TinyModel model;
    model.architecture = architecture;
    model.rope_freqs = true;
    if (std::string_view(architecture) == "qwen2") model.n_experts = 0;
    model.vector_type = TensorType::f32;
    const auto path = test::write_tiny_model(dir.path(), model);
    const std::vector<float> expected = logits_of(path);
    const auto norm_bytes = [&] {
      for (const PlanItem& item : inspect(path).plan.items) {
        if (item.what == "norms") return item.bytes;
      }
      return std::uint64_t{0};
    };
    const std::uint64_t norm_bytes_f32 = norm_bytes();
    for (const TensorType type : {TensorType::f16, TensorType::bf16, TensorType::f64}) {
      model.vector_type = type;
      test::write_tiny_model(dir.path(), model);
      EXPECT_EQ(logits_of(path), expected) << gguf::type_name(type);
      EXPECT_GT(norm_bytes(), norm_bytes_f32) << "the converted ones take memory, too";
    }
    model.vector_type = TensorType::i32;
    test::write_tiny_model(dir.path(), model);
    EXPECT_NE(refusal(path, ErrorCode::unsupported).find("F16"), std::string::npos);
  }
}

TEST(Open, MissingShardIsNamed) {
  const test::TempDir dir;
  const auto shards = test::write_tiny_shards(dir.path(), {}, 3);
  std::filesystem::remove(shards[1]);
  const std::string message = refusal(shards[0], ErrorCode::io);
  EXPECT_NE(message.find(shards[1].filename().string()), std::string::npos) << message;
}

TEST(Open, MissingFileFolderAndGarbageAreToldApart) {
  const test::TempDir dir;
  EXPECT_NE(refusal(dir / "none.gguf", ErrorCode::io).find("none.gguf"), std::string::npos);
  refusal(dir.path(), ErrorCode::io);
  std::ofstream(dir / "page.gguf") << "<!DOCTYPE html><html>404</html>";
  refusal(dir / "page.gguf", ErrorCode::invalid_file);
}

TEST(Open, BudgetBelowTheFloorSaysTheFloor) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  OpenOptions options;
  options.memory_bytes = 1 << 20;
  const std::string message = refusal(path, ErrorCode::budget, options);
  EXPECT_NE(message.find("at least"), std::string::npos) << message;
}

TEST(Open, OptionsOutOfRangeAreRefused) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  OpenOptions options;
  options.n_threads = -1;
  refusal(path, ErrorCode::invalid_argument, options);
  options = {};
  options.n_ctx = 100'000;
  refusal(path, ErrorCode::invalid_argument, options);
  options = {};
  options.max_sequences = 0;
  refusal(path, ErrorCode::invalid_argument, options);
  options = {};
  options.pre_tokenizer = "no-such-thing";
  EXPECT_NE(refusal(path, ErrorCode::unsupported, options).find("qwen2"), std::string::npos);
}

TEST(Open, TruncatedFileIsRefusedBeforeAnythingRuns) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1000);
  refusal(path, ErrorCode::invalid_file);
}

TEST(Open, MalformedFilesGetTheirVerdict) {
  SLUICE_NEEDS_DATA(folder, "malformed");
  std::size_t n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    ++n_files;
    // None of them is a whole model, so opening must end in an Error of a kind that is the file's fault.
    try {
      Model::open(entry.path());
      ADD_FAILURE() << entry.path() << " was accepted";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::invalid_file || error.code() == ErrorCode::unsupported)
          << entry.path() << ": " << error.what();
    }
    try {
      const Inspection inspection = inspect(entry.path());
      EXPECT_FALSE(inspection.runnable) << entry.path();
      EXPECT_FALSE(inspection.why_not.empty()) << entry.path();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_file) << entry.path() << ": " << error.what();
    }
  }
  EXPECT_GE(n_files, 60u);
}

TEST(Inspect, TellsRolesAndPlacementWithoutLoading) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  const Inspection inspection = inspect(path);
  EXPECT_TRUE(inspection.runnable) << inspection.why_not;
  EXPECT_EQ(inspection.architecture, "qwen3moe");
  EXPECT_EQ(inspection.plan.n_units, 24u);
  EXPECT_EQ(inspection.bytes_by_role.at("experts"), 24u * 3 * 64 * 96 * 4);
  std::uint64_t total = 0;
  for (const auto& [role, bytes] : inspection.bytes_by_role) total += bytes;
  std::uint64_t tensors = 0;
  for (const TensorFact& tensor : inspection.tensors) tensors += tensor.bytes;
  EXPECT_EQ(total, tensors);
}

}  // namespace
}  // namespace sluice
