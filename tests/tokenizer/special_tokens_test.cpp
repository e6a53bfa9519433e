#include "tokenizer/special_tokens.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tokenizer/vocab_support.hpp"

namespace sluice::tokenizer {
namespace {

using test::VocabBuilder;
using testing::ElementsAre;

VocabBuilder ten_tokens() {
  VocabBuilder builder("gpt2", "gpt-2");
  for (const char* text : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}) builder.add(text);
  return builder;
}

TEST(SpecialTokens, AreThoseThatTheMetadataName) {
  const std::vector<std::pair<std::string, SpecialToken>> names = {
      {"eot", SpecialToken::eot},
      {"eom", SpecialToken::eom},
      {"unknown", SpecialToken::unknown},
      {"seperator", SpecialToken::separator},
      {"padding", SpecialToken::padding},
      {"mask", SpecialToken::mask},
      {"fim_pre", SpecialToken::fim_prefix},
      {"fim_suf", SpecialToken::fim_suffix},
      {"fim_mid", SpecialToken::fim_middle},
      {"fim_pad", SpecialToken::fim_padding},
      {"fim_rep", SpecialToken::fim_repository},
      {"fim_sep", SpecialToken::fim_file},
      {"prefix", SpecialToken::fim_prefix},
      {"suffix", SpecialToken::fim_suffix},
      {"middle", SpecialToken::fim_middle},
  };
  for (const auto& [name, which] : names) {
    auto builder = ten_tokens();
    builder.set_uint("tokenizer.ggml." + name + "_token_id", 7);
    const auto tokenizer = builder.build();
    for (std::size_t i = 0; i < k_n_special_tokens; ++i) {
      const auto each = static_cast<SpecialToken>(i);
      EXPECT_EQ(tokenizer->special_token(each), each == which ? 7 : -1) << name << ", " << i;
    }
  }
}

TEST(SpecialTokens, InfillMarksAreFoundByTextAndTheMetadataGoFirst) {
  auto builder = ten_tokens();
  const TokenId prefix = builder.add("<|fim_prefix|>", TokenKind::user_defined);
  const TokenId hole = builder.add(
      "<\uff5c"
      "fim\u2581hole\uff5c>",
      TokenKind::normal);
  const TokenId file = builder.add("<|file_sep|>", TokenKind::normal);
  testing::internal::CaptureStderr();
  const auto tokenizer = builder.build();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(tokenizer->special_token(SpecialToken::fim_prefix), prefix);
  EXPECT_EQ(tokenizer->special_token(SpecialToken::fim_suffix), hole);
  EXPECT_EQ(tokenizer->special_token(SpecialToken::fim_file), file);
  // No text of a user becomes one, and none is shown.
  EXPECT_EQ(tokenizer->token_kind(prefix), TokenKind::control);
  EXPECT_EQ(tokenizer->token_bytes(file), "");
  EXPECT_THAT(tokenizer->encode("a<|fim_prefix|>", {.parse_special = true}), ElementsAre(0, prefix));
  EXPECT_THAT(tokenizer->end_of_generation_tokens(), ElementsAre(file));
  builder.set_uint("tokenizer.ggml.fim_pre_token_id", 3);
  EXPECT_EQ(builder.build()->special_token(SpecialToken::fim_prefix), 3);
}

TEST(SpecialTokens, SuppressedOnesAreAListOfIds) {
  using gguf::Array;
  using gguf::ValueType;
  auto builder = ten_tokens();
  builder.metadata.source_name = "suppressed.gguf";
  EXPECT_THAT(builder.build()->suppressed_tokens(), testing::IsEmpty());
  const std::vector<std::int32_t> ids = {9, 2, 2, -1, 10, 5};
  builder.metadata.set("tokenizer.ggml.suppress_tokens", {ValueType::array, Array{ValueType::i32, ids}});
  EXPECT_THAT(builder.build()->suppressed_tokens(), ElementsAre(2, 5, 9));
  builder.set_uint("tokenizer.ggml.suppress_tokens", 3);
  EXPECT_THAT(builder.build()->suppressed_tokens(), testing::IsEmpty());
}

TEST(Scores, MayBeIntegers) {
  using gguf::Array;
  using gguf::ValueType;
  VocabBuilder builder("llama");
  builder.add("<unk>", TokenKind::unknown);
  for (const char* text : {"a", "b", "c", "ab", "bc"}) builder.add(text);
  builder.set_bool("tokenizer.ggml.add_space_prefix", false);
  builder.build();
  for (const auto& [ab, bc] : {std::pair{-1, -2}, std::pair{-2, -1}}) {
    const std::vector<std::int32_t> scores = {0, -9, -9, -9, ab, bc};
    builder.metadata.set("tokenizer.ggml.scores", {ValueType::array, Array{ValueType::i32, scores}});
    const auto tokenizer = make_tokenizer(builder.metadata);
    if (ab > bc) {
      EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(4, 3));
    } else {
      EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(1, 5));
    }
  }
}

}  // namespace
}  // namespace sluice::tokenizer
