// What BPE does beyond bytes: characters as SentencePiece spells them (gemma4), and merges that a file leaves
// out (kimi-k2).
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "sluice/error.hpp"
#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/vocab_support.hpp"

namespace sluice::tokenizer {
namespace {

using test::VocabBuilder;
using testing::ElementsAre;

/// <pad>, <eos>, <bos>, then the 256 byte tokens: byte b has id 3 + b.
VocabBuilder gemma_vocab() {
  VocabBuilder builder("gemma4");
  for (const char* text : {"<pad>", "<eos>", "<bos>"}) builder.add(text, TokenKind::control);
  for (int byte = 0; byte < 256; ++byte) builder.add(fmt::format("<0x{:02X}>", byte), TokenKind::byte);
  builder.set_uint("tokenizer.ggml.bos_token_id", 2);
  builder.set_uint("tokenizer.ggml.eos_token_id", 1);
  return builder;
}

TEST(Gemma4, MergesCharactersAndSpellsSpacesWithAMark) {
  auto builder = gemma_vocab();
  const TokenId mark = builder.add("\u2581"), a = builder.add("a"), b = builder.add("b");
  const TokenId mark_a = builder.add("\u2581a"), two = builder.add("\u2581\u2581");
  const TokenId joined = builder.add("\u2581a\u2581");
  builder.add_merge("\u2581 \u2581");
  builder.add_merge("\u2581 a");
  builder.add_merge("\u2581a \u2581");
  const auto tokenizer = builder.build();
  const EncodeOptions plain{.add_special = false};
  EXPECT_THAT(tokenizer->encode(" ab", plain), ElementsAre(mark_a, b));
  // Words are not divided: a merge may reach over a space.
  EXPECT_THAT(tokenizer->encode(" a b", plain), ElementsAre(joined, b));
  EXPECT_THAT(tokenizer->encode("a   b", plain), ElementsAre(a, two, mark, b));
  EXPECT_EQ(tokenizer->decode({a, two, mark, b}), "a   b");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(" a b")), " a b");
  EXPECT_EQ(tokenizer->pre_tokenizer(), "gemma4");
}

TEST(Gemma4, WhatHasNoTokenIsSpelledInBytes) {
  auto builder = gemma_vocab();
  const TokenId a = builder.add("a");
  const auto tokenizer = builder.build();
  const std::vector<TokenId> ids = tokenizer->encode("a\u4F60\xFF", {.add_special = false});
  EXPECT_THAT(ids, ElementsAre(a, 3 + 0xE4, 3 + 0xBD, 3 + 0xA0, 3 + 0xFF));
  EXPECT_EQ(tokenizer->decode(ids), "a\u4F60\uFFFD");
}

TEST(Gemma4, RunsOfNewlinesStayWholeWhereTheyAreTokens) {
  auto builder = gemma_vocab();
  const TokenId a = builder.add("a"), one = builder.add("\n"), two = builder.add("\n\n");
  const TokenId three = builder.add("\n\n\n");
  const auto tokenizer = builder.build();
  const EncodeOptions plain{.add_special = false};
  EXPECT_THAT(tokenizer->encode("a\na", plain), ElementsAre(a, one, a));
  EXPECT_THAT(tokenizer->encode("a\n\na", plain), ElementsAre(a, two, a));
  EXPECT_THAT(tokenizer->encode("\n\n\n", plain), ElementsAre(three));
  EXPECT_THAT(tokenizer->encode("\n\n\n\n", plain), ElementsAre(one, one, one, one));
}

TEST(Gemma4, TextsBeginWithBosEvenWhereTheFileDeniesIt) {
  auto builder = gemma_vocab();
  const TokenId a = builder.add("a");
  builder.set_bool("tokenizer.ggml.add_bos_token", false);
  EXPECT_THAT(builder.build()->encode("a"), ElementsAre(2, a));
}

TEST(Gemma4, EndsAreItsOwnMarksAndHtmlIsNone) {
  auto builder = gemma_vocab();
  const TokenId html = builder.add("</s>", TokenKind::control);
  const TokenId turn = builder.add("<turn|>", TokenKind::normal);
  EXPECT_THAT(builder.build()->end_of_generation_tokens(), ElementsAre(1, html, turn));
  const TokenId tool = builder.add("<|tool_response>", TokenKind::user_defined);
  const auto tokenizer = builder.build();
  EXPECT_THAT(tokenizer->end_of_generation_tokens(), ElementsAre(1, turn, tool));
  EXPECT_EQ(tokenizer->eot(), turn);
}

/// All bytes and a few hundred words over three letters, each the sum of two earlier ones, as training makes
/// them.
VocabBuilder ranked_vocab(std::uint64_t seed, std::vector<std::string>& words) {
  VocabBuilder builder("gpt2", "kimi-k2");
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_byte_spelling(spelling, static_cast<unsigned char>(byte));
    builder.add(spelling);
    words.push_back(spelling);
  }
  base::SplitMix64 random{seed};
  std::vector<std::string> grown = {"a", "b", "c"};
  while (words.size() < 456) {
    const std::string word = grown[random.below(grown.size())] + grown[random.below(grown.size())];
    if (word.size() > 9 || std::find(words.begin(), words.end(), word) != words.end()) continue;
    builder.add(word);
    words.push_back(word);
    grown.push_back(word);
  }
  return builder;
}

/// The neighbours whose text is the lowest token merge, the leftmost of equal ones, until none are left.
std::vector<TokenId> merge_by_rank(const std::string& text, const std::map<std::string, TokenId>& ranks) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (;;) {
    TokenId best = std::numeric_limits<TokenId>::max();
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        place = i;
      }
    }
    if (best == std::numeric_limits<TokenId>::max()) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts) ids.push_back(ranks.at(part));
  return ids;
}

TEST(KimiWithoutMerges, IdsAreTheRanksOfMerges) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    std::vector<std::string> words;
    VocabBuilder builder = ranked_vocab(seed, words);
    builder.build();
    gguf::Metadata metadata;
    metadata.source_name = "kimi.gguf";
    for (const auto& entry : builder.metadata.entries()) {
      if (entry.key != "tokenizer.ggml.merges") metadata.add(entry.key, entry.value);
    }
    const auto tokenizer = make_tokenizer(metadata);
    std::map<std::string, TokenId> ranks;
    for (std::size_t i = 0; i < words.size(); ++i) ranks.emplace(words[i], static_cast<TokenId>(i));
    base::SplitMix64 random{seed + 100};
    for (int n = 0; n < 300; ++n) {
      std::string text;
      for (std::size_t length = 1 + random.below(40); length > 0; --length)
        text += static_cast<char>('a' + random.below(3));
      ASSERT_EQ(tokenizer->encode(text), merge_by_rank(text, ranks)) << text;
    }
  }
}

}  // namespace
}  // namespace sluice::tokenizer
