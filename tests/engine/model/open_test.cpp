// Goal: opening accepts split files and refuses what it cannot run, with a message a user can act on.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <vector>

#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

std::string refusal(const std::filesystem::path& path, ErrorCode code, const OpenOptions& options = {},
                    const engine::Hooks& hooks = {}) {
  try {
    engine::open_model(path, options, hooks);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << path << " was accepted";
  return {};
}

std::vector<float> logits_of(const std::filesystem::path& path, const engine::Hooks& hooks = {}) {
  Model model = engine::open_model(path, {}, hooks);
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

TEST(Open, WeightsComeFromTheFilesWhoseHeaderWasRead) {
  const test::TempDir dir, other_dir;
  test::TinyModel other;
  other.seed = 2;
  const auto check = [](const std::vector<std::filesystem::path>& own,
                        const std::vector<std::filesystem::path>& others) {
    const std::vector<float> expected = logits_of(own[0]);
    ASSERT_NE(logits_of(others[0]), expected);
    engine::Hooks hooks;
    hooks.after_header = [&] {
      for (std::size_t i = 0; i < own.size(); ++i) std::filesystem::rename(others[i], own[i]);
    };
    EXPECT_EQ(logits_of(own[0], hooks), expected);
  };
  check({test::write_tiny_model(dir.path(), {})}, {test::write_tiny_model(other_dir.path(), other)});
  check(test::write_tiny_shards(dir.path(), {}, 3), test::write_tiny_shards(other_dir.path(), other, 3));
}

/// Options with which `path` is opened in a quarter of what its experts need.
OpenOptions streaming(const std::filesystem::path& path, const engine::Hooks& hooks) {
  OpenOptions options;
  options.prefill_chunk = 4;
  const Plan plan = engine::open_model(path, options, hooks).plan();
  options.memory_bytes = plan.floor_bytes + (plan.resident_from_bytes - plan.floor_bytes) / 4;
  return options;
}

TEST(Open, ProgressGoesFromTheFirstByteToTheLast) {
  const auto path = test::builtin_model("tales-29m-moe-Q4_K_M.gguf");
  std::vector<OpenProgress> told;
  OpenOptions options;
  options.on_progress = [&](const OpenProgress& progress) {
    if (progress.stage != OpenStage::memory) told.push_back(progress);
    EXPECT_LE(progress.done_bytes, progress.total_bytes);
  };
  Model::open(path, options);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.front().stage, OpenStage::weights);
  EXPECT_EQ(told.back().stage, OpenStage::experts);
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].total_bytes, told.front().total_bytes);
    EXPECT_GE(told[i].done_bytes, told[i == 0 ? 0 : i - 1].done_bytes);
  }
  EXPECT_EQ(told.back().done_bytes, told.back().total_bytes);
  const std::uint64_t file_bytes = std::filesystem::file_size(path);
  EXPECT_GT(told.back().total_bytes, file_bytes / 10 * 9);
  EXPECT_LT(told.back().total_bytes, file_bytes);
}

TEST(Open, ARaisedFlagEndsEveryStageOfIt) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  OpenOptions whole;
  const OpenOptions part = streaming(path, hooks);
  for (const OpenStage stage : {OpenStage::weights, OpenStage::memory, OpenStage::experts}) {
    OpenOptions options = stage == OpenStage::memory ? part : whole;
    std::atomic<bool> cancel{false};
    options.cancel = &cancel;
    int n_after = 0;
    options.on_progress = [&](const OpenProgress& progress) {
      n_after += cancel;
      cancel = cancel || progress.stage == stage;
    };
    refusal(path, ErrorCode::cancelled, options, hooks);
    EXPECT_TRUE(cancel) << "the stage was never told of";
    EXPECT_EQ(n_after, 0);
  }
  std::atomic<bool> raised{true};
  whole.cancel = &raised;
  refusal(path, ErrorCode::cancelled, whole);
  raised = false;
  // The flag and the functions are those of opening alone: they may be gone when the model runs.
  EXPECT_NO_THROW(Model::open(path, whole));
}

TEST(Open, TheCallerIsAskedBeforeAnyWeightIsRead) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  OpenOptions options;
  bool was_loading = false;
  int n_asked = 0;
  options.on_progress = [&](const OpenProgress&) { was_loading = true; };
  options.before_loading = [&](const ModelInfo& info, const Tokenizer& tokenizer, const Plan& plan) {
    ++n_asked;
    EXPECT_FALSE(was_loading);
    EXPECT_EQ(info.n_vocab, tokenizer.vocab_size());
    EXPECT_EQ(plan.n_ctx, 256u);
    throw Error(ErrorCode::context_full, "the prompt is too long");
  };
  EXPECT_EQ(refusal(path, ErrorCode::context_full, options), "the prompt is too long");
  EXPECT_EQ(n_asked, 1);
  EXPECT_FALSE(was_loading);
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

TEST(Open, KeysAndValuesOf8BitsNeedHeadsOfWholeBlocks) {
  const test::TempDir dir;
  test::TinyModel model;
  OpenOptions options;
  options.kv_type = KvType::q8_0;
  const Model fits = Model::open(test::write_tiny_model(dir.path(), model), options);
  EXPECT_EQ(fits.plan().kv_type, "q8_0");
  const std::uint64_t f16_bytes = Model::open(test::write_tiny_model(dir.path(), model), {}).stats().kv_bytes;
  EXPECT_EQ(fits.stats().kv_bytes, f16_bytes / 32 * 17);
  model.head_dim = 24;
  const std::string message =
      refusal(test::write_tiny_model(dir.path(), model), ErrorCode::unsupported, options);
  EXPECT_NE(message.find("24"), std::string::npos) << message;
  EXPECT_NE(message.find("--kv-type f16"), std::string::npos) << message;
}

}  // namespace
}  // namespace sluice
