// Goal: the public tokenizer is the model's own, whether the model is open or only its header was read.
#include <gtest/gtest.h>

#include "sluice/error.hpp"
#include "sluice/model.hpp"
#include "sluice/tokenizer.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

TEST(OpenedTokenizer, IsThatOfTheOpenModel) {
  const auto path = test::builtin_model("tales-draft-3.7m-Q8_0.gguf");
  const Model model = Model::open(path, {});
  const Tokenizer alone = Tokenizer::open(path);
  const std::string text = "<|im_start|>user\nWhere is the fox?";
  EXPECT_EQ(alone.encode(text, true, true), model.tokenizer().encode(text, true, true));
  EXPECT_EQ(alone.vocab_size(), model.tokenizer().vocab_size());
  EXPECT_EQ(alone.eos(), model.tokenizer().eos());
}

TEST(OpenedTokenizer, BytesOfTokensAreThoseOfTheText) {
  const Tokenizer tokenizer = Tokenizer::open(test::builtin_model("tales-draft-3.7m-Q8_0.gguf"));
  const std::string text = "caf\xc3\xa9 \xf0\x9f\xa6\x8a \xff";
  std::string bytes;
  for (const TokenId token : tokenizer.encode(text, false)) bytes += tokenizer.token_bytes(token);
  EXPECT_EQ(bytes.substr(0, text.size() - 1), text.substr(0, text.size() - 1));
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.find_token("<|im_end|>")), "<|im_end|>");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(static_cast<TokenId>(tokenizer.vocab_size())), "");
}

TEST(OpenedTokenizer, FilesWithoutAVocabularyAreRefused) {
  const test::TempDir folder;
  const std::string text = "This is not a model.";
  test::write_bytes(folder / "text.gguf", text.data(), text.size());
  EXPECT_THROW(Tokenizer::open(folder / "text.gguf"), Error);
  EXPECT_THROW(Tokenizer::open(folder / "missing.gguf"), Error);
}

}  // namespace
}  // namespace sluice
