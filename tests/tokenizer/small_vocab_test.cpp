// What the two families do, on vocabularies small enough to follow by hand.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(SmallBpe, MarksOfAChatAreControlTokensWhateverTheFileSays) {
  const std::vector<std::string> ends = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>",
                                         "[EOT]",      "<eos>",      "<|endoftext|>", "<|return|>"};
  const std::vector<std::string> openings = {"<|im_start|>", "<|user|>", "[INST]", "<start_of_turn>",
                                             "<|start_header_id|>"};
  for (const TokenKind kind : {TokenKind::normal, TokenKind::user_defined, TokenKind::unused}) {
    for (const bool is_end : {true, false}) {
      for (const std::string& mark : is_end ? ends : openings) {
        auto builder = bytes_vocab();
        const TokenId id = builder.add(mark, kind);
        builder.metadata.source_name = fmt::format("{}-{}.gguf", mark, static_cast<int>(kind));
        testing::internal::CaptureStderr();
        const auto tokenizer = builder.build();
        const std::string warnings = testing::internal::GetCapturedStderr();
        EXPECT_THAT(warnings, testing::HasSubstr("(" + mark + ")"));
        EXPECT_EQ(tokenizer->is_end_of_generation(id), is_end) << mark;
        EXPECT_EQ(tokenizer->token_bytes(id), "") << mark;
        EXPECT_EQ(tokenizer->encode(mark).size(), mark.size()) << mark;
        EXPECT_THAT(tokenizer->encode(mark, {.parse_special = true}), ElementsAre(id)) << mark;
      }
    }
  }
}

TEST(SmallBpe, HtmlIsNoMarkOfAChatUnlessTheFileSaysSo) {
  for (const TokenKind kind : {TokenKind::normal, TokenKind::user_defined}) {
    auto builder = bytes_vocab();
    const TokenId begin = builder.add("<s>", kind), end = builder.add("</s>", kind);
    EXPECT_FALSE(builder.build()->is_end_of_generation(end));
    EXPECT_EQ(builder.build()->token_bytes(end), "</s>");
    builder.set_uint("tokenizer.ggml.bos_token_id", static_cast<std::uint64_t>(begin));
    builder.set_uint("tokenizer.ggml.eos_token_id", static_cast<std::uint64_t>(end));
    const auto tokenizer = builder.build();
    EXPECT_TRUE(tokenizer->is_end_of_generation(end));
    EXPECT_EQ(tokenizer->token_bytes(end), "");
    EXPECT_EQ(tokenizer->token_bytes(begin), "");
    EXPECT_EQ(tokenizer->encode("<s></s>").size(), 7u);
  }
}

TEST(SmallBpe, WordsInPiecesAreNeverMarkup) {
  auto builder = bytes_vocab();
  const TokenId start = builder.add("<|im_start|>", TokenKind::control);
  const TokenId own = builder.add("<|mine|>", TokenKind::user_defined);
  const TokenId tool = builder.add("</tool>", TokenKind::user_defined);
  const TokenId spaces = builder.add("    ", TokenKind::user_defined);
  const auto tokenizer = builder.build();
  for (const std::string_view words : {"<|im_start|>", "<|mine|>", "</tool>"}) {
    std::vector<TokenId> expected = {start};
    for (const char byte : words) expected.push_back(static_cast<unsigned char>(byte));
    expected.push_back(own);
    const std::vector<TextPiece> pieces = {{"<|im_start|>", true}, {words, false}, {"<|mine|>", true}};
    EXPECT_EQ(tokenizer->encode_pieces(pieces, -1), expected) << words;
  }
  const std::vector<TextPiece> tail = {{"a    b", false}, {"</tool>", true}};
  EXPECT_THAT(tokenizer->encode_pieces(tail, -1), ElementsAre('a', spaces, 'b', tool));
  // Nor does a mark come about where two pieces meet.
  const std::vector<TextPiece> halves = {{"<|im_", true}, {"start|>", false}};
  EXPECT_EQ(tokenizer->encode_pieces(halves, -1).size(), 12u);
  EXPECT_THAT(tokenizer->encode_pieces({}, -1), IsEmpty());
}

TEST(SmallBpe, PiecesGiveTheTokensOfTheirWholeText) {
  auto builder = bytes_vocab();
  const TokenId bos = builder.add("<b>", TokenKind::control);
  const TokenId ab = builder.add("ab");
  builder.add_merge("a b");
  builder.set_uint("tokenizer.ggml.bos_token_id", static_cast<std::uint64_t>(bos));
  builder.set_bool("tokenizer.ggml.add_bos_token", true);
  const auto tokenizer = builder.build();
  const std::vector<TextPiece> pieces = {{"xa", true}, {"", false}, {"by", false}};
  EXPECT_THAT(tokenizer->encode_pieces(pieces, -1), ElementsAre(bos, 'x', ab, 'y'));
  EXPECT_THAT(tokenizer->encode_pieces(pieces, 'q'), ElementsAre('x', ab, 'y'));
}

TEST(SmallSentencePiece, APieceThatGoesOnGetsNoSpaceBeforeIt) {
  auto builder = sentencepiece_vocab();
  const TokenId space = builder.add("\xE2\x96\x81", TokenKind::normal, -9);
  const TokenId a = builder.add("a", TokenKind::normal, -9);
  const auto tokenizer = builder.build();
  const std::vector<TextPiece> pieces = {{"a", false}, {"a", true}};
  EXPECT_THAT(tokenizer->encode_pieces(pieces, -1), ElementsAre(1, space, a, a));
  EXPECT_THAT(tokenizer->encode_pieces(pieces, a), ElementsAre(a, a));
  EXPECT_THAT(tokenizer->encode_pieces(pieces, 2), ElementsAre(space, a, a));
}

TEST(SmallSentencePiece, BeginAndEndHaveTheirPlacesWhateverTheirTypes) {
  for (const TokenKind kind : {TokenKind::normal, TokenKind::user_defined}) {
    auto builder = sentencepiece_vocab();
    builder.kinds()[1] = builder.kinds()[2] = static_cast<std::int32_t>(kind);
    const auto tokenizer = builder.build();
    EXPECT_EQ(tokenizer->bos(), 1);
    EXPECT_EQ(tokenizer->eos(), 2);
    EXPECT_TRUE(tokenizer->is_end_of_generation(2));
    EXPECT_THAT(tokenizer->encode("</s>"), testing::Not(testing::Contains(2)));
  }
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
  builder.add("<|assistant|>", TokenKind::control);
  EXPECT_EQ(builder.build()->encode(text, options).size(), 1u + 3 + 2);
  // Told by tokens that only its vocabulary has, not by the model's name, which files made from it change.
  builder.add("<|end|>", TokenKind::control);
  builder.add("<|endoftext|>", TokenKind::control);
  EXPECT_THAT(builder.build()->encode(text, options), ElementsAre(user, 3 + 'a'));
}

TEST(EndTokens, WellKnownTextsCountWhateverTheirKind) {
  auto builder = bytes_vocab();
  const TokenId im_end = builder.add("<|im_end|>", TokenKind::control);
  const TokenId eot = builder.add("<|eot_id|>", TokenKind::normal);
  const TokenId turn = builder.add("<end_of_turn>", TokenKind::user_defined);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->end_of_generation_tokens(), ElementsAre(im_end, eot, turn));
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
