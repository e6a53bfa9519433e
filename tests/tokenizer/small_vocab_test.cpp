// What the two families do, on vocabularies small enough to follow by hand.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/vocab_support.hpp"

namespace sluice::tokenizer {
namespace {

using test::VocabBuilder;
using testing::ElementsAre;
using testing::IsEmpty;

/// All 256 bytes as tokens 0 to 255.
VocabBuilder bytes_vocab(std::string pre = "gpt-2") {
  VocabBuilder builder("gpt2", std::move(pre));
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_byte_spelling(spelling, static_cast<unsigned char>(byte));
    builder.add(spelling);
  }
  return builder;
}

/// <unk>, <s>, </s>, then the 256 byte tokens: byte b has id 3 + b.
VocabBuilder sentencepiece_vocab() {
  VocabBuilder builder("llama");
  builder.add("<unk>", TokenKind::unknown);
  builder.add("<s>", TokenKind::control);
  builder.add("</s>", TokenKind::control);
  for (int byte = 0; byte < 256; ++byte) builder.add(fmt::format("<0x{:02X}>", byte), TokenKind::byte);
  return builder;
}

TEST(SmallBpe, MergesByRankThenFromTheLeft) {
  auto builder = bytes_vocab();
  const TokenId bc = builder.add("bc"), ab = builder.add("ab"), aa = builder.add("aa");
  builder.add_merge("b c");
  builder.add_merge("a b");
  builder.add_merge("a a");
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre('a', bc));
  EXPECT_THAT(tokenizer->encode("abab"), ElementsAre(ab, ab));
  EXPECT_THAT(tokenizer->encode("aaa"), ElementsAre(aa, 'a'));
}

TEST(SmallBpe, ARepeatedMergeKeepsItsFirstRankAndDanglingOnesAreIgnored) {
  auto builder = bytes_vocab();
  const TokenId ab = builder.add("ab");
  builder.add("bc");
  builder.add_merge("a b");
  builder.add_merge("x yz");
  builder.add_merge("nospace");
  builder.add_merge("");
  builder.add_merge("b c");
  builder.add_merge("a b");
  EXPECT_THAT(builder.build()->encode("abc"), ElementsAre(ab, 'c'));
}

TEST(SmallBpe, LlamaThreeTakesWholeWordsWithoutMerges) {
  auto llama = bytes_vocab("llama-bpe");
  const TokenId word = llama.add("abc");
  EXPECT_THAT(llama.build()->encode("abc"), ElementsAre(word));
  auto gpt2 = bytes_vocab("gpt-2");
  gpt2.add("abc");
  EXPECT_THAT(gpt2.build()->encode("abc"), ElementsAre('a', 'b', 'c'));
}

TEST(SmallBpe, TextNeverBecomesAControlTokenByMerging) {
  auto builder = bytes_vocab();
  const TokenId control = builder.add("ab", TokenKind::control);
  builder.add_merge("a b");
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre('a', 'b'));
  EXPECT_THAT(tokenizer->encode("ab", {.parse_special = true}), ElementsAre(control));
}

TEST(SmallBpe, InvalidUtf8IsKeptByteForByte) {
  const auto tokenizer = bytes_vocab().build();
  EXPECT_THAT(tokenizer->encode("a\xFF\xC3"), ElementsAre('a', 0xFF, 0xC3));
  EXPECT_EQ(tokenizer->token_bytes(0xFF), "\xFF");
  EXPECT_EQ(tokenizer->decode({'a', 0xFF, 0xC3}), "a\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(SmallBpe, AByteWithoutTokenBecomesTheReplacementCharacterOrUnknown) {
  VocabBuilder builder("gpt2", "gpt-2");
  builder.add("a");
  const TokenId first = builder.add("\xC3\xAF"), second = builder.add("\xC2\xBF"),
                third = builder.add("\xC2\xBD");
  EXPECT_THAT(builder.build()->encode("a\xFFz"), ElementsAre(0, first, second, third));
  const TokenId unknown = builder.add("<unk>", TokenKind::unknown);
  builder.set_uint("tokenizer.ggml.unknown_token_id", static_cast<std::uint64_t>(unknown));
  EXPECT_THAT(builder.build()->encode("a\xFFz"), ElementsAre(0, unknown, unknown));
}

TEST(SmallBpe, SpecialTokensMatchTheLongestFromTheLeft) {
  auto builder = bytes_vocab();
  const TokenId one = builder.add("<t>", TokenKind::user_defined);
  const TokenId two = builder.add("<t><t>", TokenKind::user_defined);
  const TokenId end = builder.add("<|end|>", TokenKind::control);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->encode("<t><t><t>x<t"), ElementsAre(two, one, 'x', '<', 't'));
  EXPECT_THAT(tokenizer->encode("<|end|><t>", {.parse_special = true}), ElementsAre(end, one));
  EXPECT_EQ(tokenizer->encode("<|end|>").size(), 7u) << "control tokens need parse_special";
  EXPECT_EQ(tokenizer->decode({end, one}), "<t>");
  EXPECT_EQ(tokenizer->decode({end, one}, true), "<|end|><t>");
}

TEST(SmallBpe, BosAndEosFollowTheFlagsAndBosIsNotDoubled) {
  auto builder = bytes_vocab();
  const TokenId bos = builder.add("<s>", TokenKind::control), eos = builder.add("</s>", TokenKind::control);
  builder.set_uint("tokenizer.ggml.bos_token_id", static_cast<std::uint64_t>(bos));
  builder.set_uint("tokenizer.ggml.eos_token_id", static_cast<std::uint64_t>(eos));
  EXPECT_THAT(builder.build()->encode("a"), ElementsAre('a'));
  builder.set_bool("tokenizer.ggml.add_bos_token", true);
  builder.set_bool("tokenizer.ggml.add_eos_token", true);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->encode("a"), ElementsAre(bos, 'a', eos));
  EXPECT_THAT(tokenizer->encode("a", {.add_special = false}), ElementsAre('a'));
  EXPECT_THAT(tokenizer->encode("<s>a", {.parse_special = true}), ElementsAre(bos, 'a', eos));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre(bos, eos));
}

TEST(SmallBpe, LlamaThreeStartsWithBosWhenTheFileDoesNotSay) {
  auto builder = bytes_vocab("llama-bpe");
  const TokenId bos = builder.add("<|begin_of_text|>", TokenKind::control);
  builder.set_uint("tokenizer.ggml.bos_token_id", static_cast<std::uint64_t>(bos));
  EXPECT_THAT(builder.build()->encode("a"), ElementsAre(bos, 'a'));
}

TEST(SmallBpe, QwenTextIsNormalizedAndOtherTextIsNot) {
  const std::string decomposed = "e\xCC\x81";
  EXPECT_THAT(bytes_vocab("qwen2").build()->encode(decomposed), ElementsAre(0xC3, 0xA9));
  EXPECT_THAT(bytes_vocab("llama-bpe").build()->encode(decomposed), ElementsAre('e', 0xCC, 0x81));
}

TEST(SmallSentencePiece, TheBestScoreMergesFirst) {
  auto builder = sentencepiece_vocab();
  const TokenId space = builder.add("\xE2\x96\x81", TokenKind::normal, -9);
  const TokenId a = builder.add("a", TokenKind::normal, -9);
  builder.add("b", TokenKind::normal, -9);
  builder.add("c", TokenKind::normal, -9);
  builder.add("ab", TokenKind::normal, -2);
  const TokenId bc = builder.add("bc", TokenKind::normal, -1);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(1, space, a, bc));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("abc")), "abc");
}

TEST(SmallSentencePiece, UnknownCharactersAndBrokenBytesFallBackToBytes) {
  auto builder = sentencepiece_vocab();
  builder.set_bool("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->encode("\xC3\xA9\xFF"), ElementsAre(1, 3 + 0xC3, 3 + 0xA9, 3 + 0xFF));
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xC3), "\xC3");
}

TEST(SmallSentencePiece, TheSpacePrefixIsAddedAndTakenAway) {
  auto builder = sentencepiece_vocab();
  const TokenId word = builder.add("\xE2\x96\x81x", TokenKind::normal, -1);
  const TokenId x = builder.add("x", TokenKind::normal, -2);
  builder.add("\xE2\x96\x81", TokenKind::normal, -3);
  const auto with_prefix = builder.build();
  EXPECT_THAT(with_prefix->encode("x x"), ElementsAre(1, word, word));
  EXPECT_EQ(with_prefix->decode({1, word, word}), "x x");
  EXPECT_EQ(with_prefix->decode(with_prefix->encode(" x")), " x");
  StreamDecoder continuing(*with_prefix, false, false);
  EXPECT_EQ(continuing.push(word), " x");
  builder.set_bool("tokenizer.ggml.add_space_prefix", false);
  const auto without_prefix = builder.build();
  EXPECT_THAT(without_prefix->encode("x x"), ElementsAre(1, x, word));
  EXPECT_EQ(without_prefix->decode({1, word}), " x");
}

TEST(SmallSentencePiece, PiecesThatJoinWordsStillMerge) {
  auto builder = sentencepiece_vocab();
  builder.set_bool("tokenizer.ggml.add_space_prefix", false);
  builder.add("a", TokenKind::normal, -5);
  builder.add("\xE2\x96\x81", TokenKind::normal, -5);
  const TokenId space_a = builder.add(
      "\xE2\x96\x81"
      "a",
      TokenKind::normal, -2);
  EXPECT_THAT(builder.build()->encode("a a"), ElementsAre(1, space_a - 2, space_a));
  const TokenId joined = builder.add(
      "a\xE2\x96\x81"
      "a",
      TokenKind::normal, -1);
  EXPECT_THAT(builder.build()->encode("a a"), ElementsAre(1, joined));
}

TEST(SmallSentencePiece, ControlTextIsNotMergedIntoTheControlToken) {
  auto builder = sentencepiece_vocab();
  for (const char* piece : {"<", "/", "s", ">", "</", "s>"}) builder.add(piece, TokenKind::normal, -1);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->encode("</s>", {.add_special = false}), testing::Not(testing::Contains(2)));
  EXPECT_THAT(tokenizer->encode("</s>", {.add_special = false, .parse_special = true}), ElementsAre(2));
}

TEST(SmallSentencePiece, DefaultIdsAreTheFamilysOnes) {
  const auto tokenizer = sentencepiece_vocab().build();
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_FALSE(tokenizer->adds_eos());
  EXPECT_TRUE(tokenizer->is_end_of_generation(2));
  EXPECT_FALSE(tokenizer->is_end_of_generation(1));
  EXPECT_FALSE(tokenizer->is_end_of_generation(-1));
}

TEST(SmallSentencePiece, PhiThreeTakesTheSpaceAfterItsSpecialTokens) {
  auto builder = sentencepiece_vocab();
  builder.set_bool("tokenizer.ggml.add_space_prefix", false);
  const TokenId user = builder.add("<|user|>", TokenKind::control);
  const std::string text = "<|user|> \na";
  const EncodeOptions options{.add_special = false, .parse_special = true};
  EXPECT_EQ(builder.build()->encode(text, options).size(), 1u + 3 + 2);
  builder.set_string("general.name", "Phi-3 mini");
  EXPECT_THAT(builder.build()->encode(text, options), ElementsAre(user, 3 + 'a'));
}

TEST(EndTokens, WellKnownTextsCountOnlyAsControlTokens) {
  auto builder = bytes_vocab();
  const TokenId im_end = builder.add("<|im_end|>", TokenKind::control);
  builder.add("<|eot_id|>", TokenKind::normal);
  builder.add("<end_of_turn>", TokenKind::user_defined);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->end_of_generation_tokens(), ElementsAre(im_end));
  EXPECT_EQ(tokenizer->eot(), im_end);
  EXPECT_EQ(tokenizer->eos(), -1);
}

TEST(EndTokens, MetadataIdsCountWhateverTheirKind) {
  auto builder = bytes_vocab();
  builder.set_uint("tokenizer.ggml.eos_token_id", 7);
  builder.set_uint("tokenizer.ggml.eot_token_id", 5);
  builder.set_uint("tokenizer.ggml.eom_token_id", 6);
  EXPECT_THAT(builder.build()->end_of_generation_tokens(), ElementsAre(5, 6, 7));
}

TEST(EndTokens, GptOssEndsMessagesButNotTheGenerationWithEnd) {
  auto phi = bytes_vocab();
  const TokenId end = phi.add("<|end|>", TokenKind::control);
  EXPECT_THAT(phi.build()->end_of_generation_tokens(), ElementsAre(end));
  const TokenId ret = phi.add("<|return|>", TokenKind::control),
                call = phi.add("<|call|>", TokenKind::control);
  EXPECT_THAT(phi.build()->end_of_generation_tokens(), ElementsAre(ret, call));
}

TEST(Tokenizer, IdsOutOfRangeAreHarmless) {
  const auto tokenizer = bytes_vocab().build();
  for (const TokenId token : {-1, 256, 2147483647}) {
    EXPECT_THAT(tokenizer->token_bytes(token, true), IsEmpty());
    EXPECT_THAT(tokenizer->token_text(token), IsEmpty());
  }
  EXPECT_EQ(tokenizer->decode({-5, 'h', 99999, 'i'}), "hi");
  EXPECT_EQ(tokenizer->find_token("a"), 'a');
  EXPECT_EQ(tokenizer->find_token("no such token"), -1);
  EXPECT_EQ(tokenizer->find_token(""), -1);
}

TEST(Tokenizer, OutlivesTheMetadata) {
  std::unique_ptr<Tokenizer> tokenizer;
  {
    auto builder = bytes_vocab();
    tokenizer = builder.build();
  }
  EXPECT_EQ(tokenizer->model_name(), "gpt2");
  EXPECT_EQ(tokenizer->pre_tokenizer(), "gpt-2");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("still here")), "still here");
}

}  // namespace
}  // namespace sluice::tokenizer
