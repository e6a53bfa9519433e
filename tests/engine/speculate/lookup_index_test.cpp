#include "engine/speculate/lookup_index.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace sluice::engine {
namespace {

LookupIndex index_of(std::span<const TokenId> tokens, std::uint32_t n_tokens = 256) {
  LookupIndex index(n_tokens);
  for (const TokenId token : tokens) index.push(token);
  return index;
}

std::vector<TokenId> guesses(const LookupIndex& index, std::uint32_t n) {
  std::vector<TokenId> out;
  index.copy(index.find(), n, out);
  return out;
}

using Tokens = std::vector<TokenId>;

TEST(LookupIndex, GuessesWhatFollowedTheSameRunBefore) {
  const LookupIndex index = index_of(Tokens{7, 1, 2, 3, 4, 50, 51, 52, 1, 2, 3, 4});
  EXPECT_EQ(index.find().run, 4u);
  EXPECT_EQ(guesses(index, 3), (Tokens{50, 51, 52}));
}

TEST(LookupIndex, TheLongestRunCountsThenTheLatest) {
  // 2 3 was last followed by 9, but 1 2 3 by 8.
  const LookupIndex longest = index_of(Tokens{1, 2, 3, 8, 5, 2, 3, 9, 6, 1, 2, 3});
  EXPECT_EQ(longest.find().run, 3u);
  EXPECT_EQ(guesses(longest, 1), Tokens{8});
  const LookupIndex latest = index_of(Tokens{2, 3, 8, 5, 2, 3, 9, 6, 2, 3});
  EXPECT_EQ(latest.find().run, 2u);
  EXPECT_EQ(guesses(latest, 1), Tokens{9});
}

TEST(LookupIndex, ARepetitionIsContinuedBeyondItsEnd) {
  const LookupIndex index = index_of(Tokens{9, 1, 2, 3, 1, 2, 3});
  EXPECT_EQ(guesses(index, 8), (Tokens{1, 2, 3, 1, 2, 3, 1, 2}));
}

TEST(LookupIndex, AnythingNewOrTooShortGivesNothing) {
  for (const Tokens& tokens :
       {Tokens{}, Tokens{1}, Tokens{1, 2}, Tokens{1, 2, 3, 4, 5}, Tokens{1, 5, 2, 5}}) {
    EXPECT_EQ(index_of(tokens).find().run, 0u);
  }
  EXPECT_EQ(index_of(Tokens{4, 4, 4}).find().run, 2u);
}

TEST(LookupIndex, WhatWasForgottenIsNeverGuessed) {
  LookupIndex index = index_of(Tokens{1, 2, 3, 4, 5, 6, 1, 2, 3, 4});
  index.truncate(4);
  EXPECT_EQ(index.find().run, 0u);
  for (const TokenId token : {7, 8, 1, 2, 3, 4}) index.push(token);
  EXPECT_EQ(guesses(index, 2), (Tokens{7, 8}));
  index.truncate(0);
  EXPECT_TRUE(index.tokens().empty());
  EXPECT_EQ(index.find().run, 0u);
}

TEST(LookupIndex, EveryMatchIsRealInTextsThatOverfillItsTables) {
  base::SplitMix64 random(3);
  LookupIndex index(64);
  std::size_t n_found = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random.below(500) == 0) index.truncate(random.below(index.tokens().size() + 1));
    index.push(static_cast<TokenId>(random.below(12)));
    const LookupIndex::Match match = index.find();
    if (match.run == 0) continue;
    ++n_found;
    const auto text = index.tokens();
    ASSERT_LT(match.next, text.size());
    for (std::uint32_t j = 1; j <= match.run; ++j) ASSERT_EQ(text[match.next - j], text[text.size() - j]);
  }
  EXPECT_GT(n_found, 1000u);
}

}  // namespace
}  // namespace sluice::engine
