// Goal: models of one family guess for one another although their vocabularies are padded to different sizes.
// Method: the built-in models with tokens and rows added at the end, against the same models without.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "gguf/reader.hpp"
#include "gguf/writer.hpp"
#include "sluice/generate.hpp"
#include "sluice/speculate.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t k_n_padding = 128;

/// Twice the row: Q8_0 has blocks of a scale (f16) and 32 numbers of 8 bits.
void double_row(std::vector<std::byte>& row) {
  constexpr std::size_t k_block_bytes = 34;
  for (std::size_t at = 0; at < row.size(); at += k_block_bytes) {
    std::uint16_t scale = 0;
    std::memcpy(&scale, row.data() + at, sizeof scale);
    if (scale != 0) scale = static_cast<std::uint16_t>(scale + 0x400);  // One more in the exponent.
    std::memcpy(row.data() + at, &scale, sizeof scale);
  }
}

/// A copy of a model with k_n_padding tokens at the end. Their rows repeat those of `rows`; where the type is
/// Q8_0 they are twice as large, so that a model that took them for tokens would choose nothing else.
/// `respelled`: a token that gets another text, or -1.
fs::path pad(const fs::path& from, const fs::path& to, const std::vector<TokenId>& rows, int respelled = -1) {
  test::MemorySource source(from.string(), test::read_bytes(from));
  const gguf::ModelFile file = gguf::parse_file(source);
  gguf::Writer writer;
  for (const gguf::Metadata::Entry& entry : file.metadata.entries()) {
    gguf::Value value = entry.value;
    if (entry.key == "tokenizer.ggml.tokens") {
      const auto& old = std::get<gguf::StringArray>(std::get<gguf::Array>(value.data).data);
      gguf::StringArray tokens;
      for (std::size_t i = 0; i < old.size(); ++i)
        tokens.push_back(static_cast<int>(i) == respelled ? "another spelling" : std::string(old[i]));
      for (std::size_t i = 0; i < k_n_padding; ++i) tokens.push_back(fmt::format("[PAD{}]", i));
      std::get<gguf::Array>(value.data).data = tokens;
    } else if (entry.key == "tokenizer.ggml.token_type") {
      auto& kinds = std::get<std::vector<std::int32_t>>(std::get<gguf::Array>(value.data).data);
      constexpr std::int32_t k_unused = 5;
      kinds.insert(kinds.end(), k_n_padding, k_unused);
    }
    writer.metadata().set(entry.key, value);
  }
  std::vector<std::vector<std::byte>> data;
  for (const gguf::TensorInfo& tensor : file.tensors) {
    std::vector<std::uint64_t> dims(tensor.dims.begin(), tensor.dims.begin() + tensor.n_dims);
    std::vector<std::byte>& bytes = data.emplace_back(tensor.size_bytes);
    source.read(tensor.offset_bytes, bytes);
    if (tensor.name == "token_embd.weight" || tensor.name == "output.weight") {
      const std::size_t row_bytes = bytes.size() / dims[1];
      for (std::size_t i = 0; i < k_n_padding; ++i) {
        const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(row_bytes) * rows[i % rows.size()];
        std::vector<std::byte> row(at, at + static_cast<std::ptrdiff_t>(row_bytes));
        if (tensor.type == gguf::TensorType::q8_0) double_row(row);
        bytes.insert(bytes.end(), row.begin(), row.end());
      }
      dims[1] += k_n_padding;
    }
    writer.add_tensor(tensor.name, tensor.type, dims);
  }
  const std::vector<std::byte> bytes = writer.write_all(data);
  test::write_bytes(to, bytes.data(), bytes.size());
  return to;
}

class PaddedDraft : public ::testing::Test {
 protected:
  static OpenOptions options() {
    OpenOptions options;
    options.n_ctx = 256;
    options.n_threads = 1;
    return options;
  }

  struct Run {
    std::vector<TokenId> tokens;
    GuessStats guesses;
  };
  /// Greedy tokens, guessed by a draft when there is one.
  static Run run(const fs::path& path, const fs::path& draft_path) {
    Model model = Model::open(path, options());
    SpeculateOptions speculate;
    speculate.max_guesses = 6;
    speculate.lookup = speculate.gate = false;
    std::optional<Speculator> speculator;
    if (!draft_path.empty()) speculator.emplace(model, open_draft(draft_path, options()), speculate);
    GenerateOptions generating;
    generating.sampler.temperature = 0;
    generating.max_tokens = 100;
    if (speculator) generating.speculator = &*speculator;
    Sequence sequence = model.new_sequence();
    const auto prompt = model.tokenizer().encode("Once upon a time there was a little");
    const Generation answer = generate(model, sequence, prompt, generating);
    return {answer.tokens, model.stats().draft};
  }

  static void expect_same(const Run& run, const Run& expected) {
    EXPECT_EQ(run.tokens, expected.tokens);
    EXPECT_EQ(run.guesses.n_guessed, expected.guesses.n_guessed);
    EXPECT_EQ(run.guesses.n_accepted, expected.guesses.n_accepted);
  }

  test::TempDir dir;
  fs::path path = test::builtin_model("tales-29m-moe-Q4_K_M.gguf");
  fs::path draft = test::builtin_model("tales-draft-3.7m-Q8_0.gguf");
  Run plain = run(path, {});
  Run guessed = run(path, draft);
};

TEST_F(PaddedDraft, GuessesTheSameWithALargerOrASmallerVocabulary) {
  ASSERT_EQ(guessed.tokens, plain.tokens);
  ASSERT_GT(guessed.guesses.n_accepted, 20u) << "so few right guesses show nothing";
  expect_same(run(path, pad(draft, dir / "draft.gguf", plain.tokens)), guessed);
  expect_same(run(pad(path, dir / "model.gguf", {0}), draft), guessed);
}

TEST_F(PaddedDraft, IsRefusedWhenATokenOfBothIsSpelledOtherwise) {
  const fs::path other = pad(draft, dir / "draft.gguf", plain.tokens, 300);
  const auto message_of = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message_of([&] { run(path, other); }), ::testing::HasSubstr("token 300"));

  // Known from the headers, so the model is not loaded for it.
  const Model opened = open_draft(other, options());
  OpenOptions with = options();
  with.draft = &opened;
  bool was_loading = false;
  with.on_progress = [&](const OpenProgress&) { was_loading = true; };
  EXPECT_THAT(message_of([&] { Model::open(path, with); }), ::testing::HasSubstr("token 300"));
  EXPECT_FALSE(was_loading);
}

}  // namespace
}  // namespace sluice
