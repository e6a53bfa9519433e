// Vocabularies that must be refused, and that the message helps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

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
  auto bad_type = two_tokens("gpt2", "gpt-2");
  bad_type.kinds()[1] = 7;
  expect_error(ErrorCode::invalid_file, "token_type[1] is 7", [&] { bad_type.build(); });
  auto bad_score = two_tokens("llama");
  bad_score.scores()[0] = std::numeric_limits<float>::quiet_NaN();
  expect_error(ErrorCode::invalid_file, "scores[0]", [&] { bad_score.build(); });
}

TEST(InvalidVocab, SpecialIdsThatAreNoIdsCountAsAbsentWithOneWarningEach) {
  using gguf::Value;
  using gguf::ValueType;
  const std::vector<Value> values = {
      {ValueType::u32, std::uint64_t{4}},
      {ValueType::u32, std::uint64_t{4294967295}},
      {ValueType::i32, std::int64_t{-1}},
      {ValueType::i64, std::int64_t{-7}},
      {ValueType::i8, std::int64_t{-1}},
      {ValueType::u64, std::numeric_limits<std::uint64_t>::max()},
      {ValueType::i64, std::int64_t{1} << 40},
      {ValueType::string, std::string("<|im_end|>")},
      {ValueType::f32, -1.0},
  };
  int n_file = 0;
  for (const Value& value : values) {
    for (const char* model : {"gpt2", "llama"}) {
      auto builder = two_tokens(model, std::string_view(model) == "gpt2" ? "gpt-2" : "");
      builder.add("c");  // Where SentencePiece has its end of a text.
      const TokenId end = builder.add("<|im_end|>", TokenKind::control);
      const std::vector<std::string> names = {"bos", "eos",  "eot",     "eom",     "unknown", "seperator",
                                              "cls", "mask", "padding", "fim_pre", "fim_suf"};
      for (const std::string& name : names) {
        builder.metadata.set("tokenizer.ggml." + name + "_token_id", value);
      }
      builder.set_bool("tokenizer.ggml.add_bos_token", true);
      builder.set_bool("tokenizer.ggml.add_eos_token", true);
      // Every text of a warning is printed once only.
      builder.metadata.source_name = "ids" + std::to_string(++n_file) + ".gguf";
      testing::internal::CaptureStderr();
      const auto tokenizer = builder.build();
      const std::string warnings = testing::internal::GetCapturedStderr();
      for (const std::string& name : names) {
        EXPECT_THAT(warnings,
                    HasSubstr(builder.metadata.source_name + ": tokenizer.ggml." + name + "_token_id is"));
      }
      EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), static_cast<std::ptrdiff_t>(names.size()))
          << warnings;
      EXPECT_EQ(tokenizer->bos(), -1);
      EXPECT_EQ(tokenizer->eos(), -1);
      EXPECT_EQ(tokenizer->eot(), end);
      EXPECT_EQ(tokenizer->end_of_generation_tokens(), std::vector<TokenId>{end});
    }
  }
}

TEST(InvalidVocab, ListsOfIdsThatAreNoneAreWarnedOf) {
  auto builder = two_tokens("gpt2", "gpt-2");
  builder.metadata.source_name = "lists.gguf";
  using gguf::Array;
  using gguf::ValueType;
  builder.metadata.set("tokenizer.ggml.suppress_tokens",
                       {ValueType::array, Array{ValueType::i32, std::vector<std::int32_t>{0, -1}}});
  builder.metadata.set("tokenizer.ggml.eos_token_ids",
                       {ValueType::array, Array{ValueType::string, gguf::StringArray()}});
  builder.metadata.set("tokenizer.ggml.good_token_ids",
                       {ValueType::array, Array{ValueType::u32, std::vector<std::uint32_t>{0, 1}}});
  testing::internal::CaptureStderr();
  builder.build();
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("suppress_tokens is"));
  EXPECT_THAT(warnings, HasSubstr("eos_token_ids is"));
  EXPECT_THAT(warnings, testing::Not(HasSubstr("good_token_ids")));
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
