// Vocabularies that must be refused, and that the message helps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "sluice/error.hpp"
#include "tokenizer/vocab_support.hpp"

namespace sluice::tokenizer {
namespace {

using test::VocabBuilder;
using testing::HasSubstr;

template <typename Make>
void expect_error(ErrorCode code, const std::string& part, Make make) {
  try {
    make();
    ADD_FAILURE() << "no error; expected one with \"" << part << '"';
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_THAT(error.what(), HasSubstr("test.gguf"));
  }
}

VocabBuilder two_tokens(const char* model, const char* pre = "") {
  VocabBuilder builder(model, pre);
  builder.add("a");
  builder.add("b");
  return builder;
}

TEST(InvalidVocab, AFileWithoutVocabularySaysSo) {
  for (const char* model : {"none", "no_vocab"}) {
    auto builder = two_tokens(model);
    expect_error(ErrorCode::unsupported, "no vocabulary", [&] { builder.build(); });
  }
  gguf::Metadata empty;
  empty.source_name = "test.gguf";
  expect_error(ErrorCode::unsupported, "no vocabulary", [&] { make_tokenizer(empty); });
}

TEST(InvalidVocab, UnknownModelsAndPreTokenizersAreNamedWithTheCure) {
  auto wordpiece = two_tokens("bert");
  expect_error(ErrorCode::unsupported, "\"bert\"", [&] { wordpiece.build(); });
  auto unknown = two_tokens("gpt2", "my-pre");
  expect_error(ErrorCode::unsupported, "\"my-pre\"", [&] { unknown.build(); });
  expect_error(ErrorCode::unsupported, "--pre-tokenizer", [&] { unknown.build(); });
  expect_error(ErrorCode::unsupported, "qwen2", [&] { unknown.build(); });
  EXPECT_EQ(unknown.build({.pre_tokenizer = "qwen2"})->pre_tokenizer(), "qwen2");
  auto spm = two_tokens("llama");
  expect_error(ErrorCode::invalid_argument, "--pre-tokenizer",
               [&] { spm.build({.pre_tokenizer = "qwen2"}); });
}

TEST(InvalidVocab, AMissingPreTokenizerMeansDefault) {
  EXPECT_EQ(two_tokens("gpt2").build()->pre_tokenizer(), "default");
}

TEST(InvalidVocab, ArraysOfAnotherLengthAreRefused) {
  for (const char* model : {"gpt2", "llama"}) {
    auto few_scores = two_tokens(model, "gpt-2");
    few_scores.scores().pop_back();
    expect_error(ErrorCode::invalid_file, "tokenizer.ggml.scores has 1 entries, expected 2",
                 [&] { few_scores.build(); });
    auto many_types = two_tokens(model, "gpt-2");
    many_types.kinds().push_back(1);
    expect_error(ErrorCode::invalid_file, "tokenizer.ggml.token_type has 3 entries",
                 [&] { many_types.build(); });
  }
}

TEST(InvalidVocab, ValuesOutOfRangeAreRefused) {
  for (const char* key : {"bos", "eos", "eot", "eom", "unknown"}) {
    auto builder = two_tokens("gpt2", "gpt-2");
    builder.set_uint(std::string("tokenizer.ggml.") + key + "_token_id", 2);
    expect_error(ErrorCode::invalid_file, std::string(key) + "_token_id is 2", [&] { builder.build(); });
  }
  auto bad_type = two_tokens("gpt2", "gpt-2");
  bad_type.kinds()[1] = 7;
  expect_error(ErrorCode::invalid_file, "token_type[1] is 7", [&] { bad_type.build(); });
  auto bad_score = two_tokens("llama");
  bad_score.scores()[0] = std::numeric_limits<float>::quiet_NaN();
  expect_error(ErrorCode::invalid_file, "scores[0]", [&] { bad_score.build(); });
}

TEST(InvalidVocab, MalformedByteTokensAreRefused) {
  for (const char* text : {"<0xZZ>", "<0x-1>", "<0x100>", "<0x1>", "0x41", "<0X41>", ""}) {
    auto builder = two_tokens("llama");
    builder.add(text, TokenKind::byte);
    expect_error(ErrorCode::invalid_file, "token 2 is a byte token", [&] { builder.build(); });
  }
}

TEST(InvalidVocab, MissingArraysAreNamed) {
  VocabBuilder empty("gpt2", "gpt-2");
  expect_error(ErrorCode::invalid_file, "tokenizer.ggml.tokens", [&] { empty.build(); });
  auto builder = two_tokens("gpt2", "gpt-2");
  builder.build();
  gguf::Metadata copy;
  copy.source_name = "test.gguf";
  for (const auto& entry : builder.metadata.entries()) {
    if (entry.key != "tokenizer.ggml.merges") copy.add(entry.key, entry.value);
  }
  expect_error(ErrorCode::invalid_file, "tokenizer.ggml.merges", [&] { make_tokenizer(copy); });
}

TEST(InvalidVocab, RepeatedAndEmptyTokensAreKeptButNotProduced) {
  VocabBuilder builder("gpt2", "gpt-2");
  builder.add("a");
  builder.add("");
  builder.add("a");
  const auto tokenizer = builder.build();
  EXPECT_EQ(tokenizer->vocab_size(), 3u);
  EXPECT_EQ(tokenizer->find_token("a"), 0);
  EXPECT_EQ(tokenizer->decode({2, 1, 0}), "aa");
}

TEST(InvalidVocab, EveryKnownPreTokenizerNameBuilds) {
  EXPECT_GT(known_pre_tokenizers().size(), 40u);
  for (const std::string& name : known_pre_tokenizers()) {
    EXPECT_EQ(two_tokens("gpt2", name.c_str()).build()->pre_tokenizer(), name);
  }
}

}  // namespace
}  // namespace sluice::tokenizer
