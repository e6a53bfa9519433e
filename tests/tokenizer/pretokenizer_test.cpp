#include "tokenizer/pretokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::tokenizer {
namespace {

using testing::ElementsAre;
using Words = std::vector<std::string>;

Words split(const char* name, std::string_view text) {
  const PreTokenizer splitter(*find_pre_tokenizer(name));
  Words words;
  splitter.split(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(PreTokenizer, ContractionsAreWordsWhateverTheirCaseInLlamaAndQwenOnly) {
  EXPECT_THAT(split("qwen2", "We'Ve I'm"), ElementsAre("We", "'Ve", " I", "'m"));
  EXPECT_THAT(split("llama-bpe", "he's"), ElementsAre("he", "'s"));
  EXPECT_THAT(split("gpt-2", "We'Ve I'm"), ElementsAre("We", "'", "Ve", " I", "'m"));
}

TEST(PreTokenizer, DigitsGroupAsTheFamilyWants) {
  EXPECT_THAT(split("gpt-2", "12345"), ElementsAre("12345"));
  EXPECT_THAT(split("qwen2", "123"), ElementsAre("1", "2", "3"));
  EXPECT_THAT(split("llama-bpe", "12345"), ElementsAre("123", "45"));
  EXPECT_THAT(split("deepseek-v3", "12345"), ElementsAre("123", "45"));
  EXPECT_THAT(split("deepseek-coder", "12"), ElementsAre("1", "2"));
  EXPECT_THAT(split("falcon", "12345"), ElementsAre("123", "45"));
  EXPECT_THAT(split("starcoder", " 12"), ElementsAre(" ", "1", "2"));
  EXPECT_THAT(split("default", "a 1234"), ElementsAre("a", " ", "123", "4"));
  EXPECT_THAT(split("gpt-4o", "12345"), ElementsAre("123", "45"));
}

TEST(PreTokenizer, DigitsGroupFromTheRightInSomeFamilies) {
  for (const char* name : {"tiny_aya", "cohere2moe", "afmoe", "superbpe"}) {
    EXPECT_THAT(split(name, "1234567"), ElementsAre("1", "234", "567")) << name;
    EXPECT_THAT(split(name, "12345678"), ElementsAre("12", "345", "678")) << name;
    EXPECT_THAT(split(name, "123456"), ElementsAre("123", "456")) << name;
    EXPECT_THAT(split(name, "12"), ElementsAre("12")) << name;
  }
  EXPECT_THAT(split("tiny_aya", "a 12345, 1234"), ElementsAre("a", " ", "12", "345", ",", " ", "1", "234"));
  // A letter behind the digits ends no word, so they count from the left.
  EXPECT_THAT(split("tiny_aya", "12345x"), ElementsAre("123", "45", "x"));
}

TEST(PreTokenizer, NewerFamiliesSplitAsTheirTokenizersDo) {
  EXPECT_THAT(split("gemma4", "a b\n\nc"), ElementsAre("a b", "\n\n", "c"));
  EXPECT_THAT(split("ufakzeka", "Ali's"), ElementsAre("Ali", "'s"));
  EXPECT_THAT(split("ufakzeka", "it'd be"), ElementsAre("it", "'d", " be"));
  EXPECT_THAT(split("laguna", "x;\n\ny"), ElementsAre("x", ";", "\n\n", "y"));
  EXPECT_THAT(split("exaone-moe", "go on there."), ElementsAre("go on there", "."));
  EXPECT_THAT(split("jais-2", "a       b"), ElementsAre("a", "    ", "  ", " b"));
  EXPECT_THAT(split("spark2_5", "x;\ny"), ElementsAre("x", ";", "\n", "y"));
  EXPECT_THAT(split("youtu", "a\u4F60\uFF0Cb"), ElementsAre("a", "\u4F60", "\uFF0C", "b"));
  EXPECT_THAT(split("chameleon", "a  12!!"), ElementsAre("a", "  ", "1", "2", "!", "!"));
}

TEST(PreTokenizer, TheLastSpaceGoesToTheNextWord) {
  for (const char* name :
       {"gpt-2", "qwen2", "llama-bpe", "gpt-4o", "deepseek-v3", "smollm", "command-r", "refact"}) {
    EXPECT_THAT(split(name, "a   b"), ElementsAre("a", "  ", " b")) << name;
    EXPECT_THAT(split(name, "a  "), ElementsAre("a", "  ")) << name;
  }
  EXPECT_THAT(split("gpt-2", "a\tb"), ElementsAre("a", "\t", "b"));
  EXPECT_THAT(split("qwen2", "a\tb"), ElementsAre("a", "\tb"));
}

TEST(PreTokenizer, LinesEndWords) {
  EXPECT_THAT(split("qwen2", "x;\n\n  y"), ElementsAre("x", ";\n\n", " ", " y"));
  EXPECT_THAT(split("deepseek-llm", "x\n\ny"), ElementsAre("x", "\n", "\n", "y"));
}

TEST(PreTokenizer, CaseChangesSplitInO200kOnly) {
  EXPECT_THAT(split("gpt-4o", "camelCase HTTPServer don't"),
              ElementsAre("camel", "Case", " HTTPServer", " don't"));
  EXPECT_THAT(split("tekken", "camelCase don't"), ElementsAre("camel", "Case", " don", "'t"));
  EXPECT_THAT(split("qwen2", "camelCase"), ElementsAre("camelCase"));
}

TEST(PreTokenizer, CombiningMarksBelongToWordsInQwen35) {
  const std::string text =
      "a\xCC\x88"
      "b";
  EXPECT_THAT(split("qwen35", text), ElementsAre(text));
  EXPECT_THAT(split("qwen2", text), ElementsAre("a",
                                                "\xCC\x88"
                                                "b"));
}

TEST(PreTokenizer, HanIsItsOwnWordInKimiAndDeepSeek) {
  EXPECT_THAT(split("kimi-k2", "ab\u4F60\u597D"), ElementsAre("ab", "\u4F60\u597D"));
  EXPECT_THAT(split("deepseek-v3", "ab\u4F60\u597D"), ElementsAre("ab", "\u4F60\u597D"));
  EXPECT_THAT(split("qwen2", "ab\u4F60\u597D"), ElementsAre("ab\u4F60\u597D"));
}

TEST(PreTokenizer, TheMongolianVowelSeparatorIsNoSpace) {
  EXPECT_THAT(split("gpt-2", "a \u180E"), ElementsAre("a", " \u180E"));
  EXPECT_THAT(split("gpt-2", "a\u0085 b"), ElementsAre("a", "\u0085", " b"));
}

TEST(PreTokenizer, TrailingSpaceOfDeepSeekLlmIsOneWord) {
  EXPECT_THAT(split("deepseek-llm", "x   "), ElementsAre("x", "   "));
}

TEST(PreTokenizer, InvalidBytesAreWordsOfTheirOwn) {
  EXPECT_THAT(split("qwen2",
                    "a\xFF\xFE"
                    "b\xE4\xBD"),
              ElementsAre("a", "\xFF\xFE", "b", "\xE4\xBD"));
}

TEST(PreTokenizer, WordsAlwaysAddUpToTheText) {
  const std::vector<std::string> texts = {"",
                                          " ",
                                          "\n",
                                          "\r\n \t",
                                          "a  b\n\n c",
                                          "'s 'S ''",
                                          "x=1;\n\n// y",
                                          "\u3000\u4F60 \u0E01\u0E34",
                                          "1,000.5 \u00BD",
                                          "\U0001F999 \U0001F468\u200D\U0001F469",
                                          "\xFF mixed \xC3",
                                          "   \n   \n",
                                          "(a|b)!?",
                                          "\u00A0\u00A0x"};
  for (const PreTokenizerSpec& spec : pre_tokenizer_specs()) {
    const PreTokenizer splitter(spec);
    for (const std::string& text : texts) {
      std::string joined;
      splitter.split(text, [&](std::string_view word) {
        EXPECT_FALSE(word.empty());
        joined += word;
      });
      EXPECT_EQ(joined, text) << spec.name;
    }
  }
}

// Quadratic matching of half a megabyte would run for many minutes; CTest's timeout is the limit.
TEST(PreTokenizer, LongRunsDoNotTakeQuadraticTime) {
  constexpr std::size_t k_bytes = 1u << 19;
  std::string upper_lower, spaced_lines;
  for (std::size_t i = 0; i < k_bytes / 2; ++i) upper_lower += "Aa";
  while (spaced_lines.size() < k_bytes) spaced_lines += std::string(300, ' ') + "\n";
  const std::vector<std::string> texts = {std::string(k_bytes, 'a'),
                                          std::string(k_bytes, ' ') + "a",
                                          std::string(k_bytes, '\n'),
                                          std::string(k_bytes, 'A'),
                                          std::string(k_bytes, '1'),
                                          std::string(k_bytes, '\''),
                                          std::string(k_bytes, '\xFF'),
                                          upper_lower,
                                          spaced_lines};
  for (const char* name : {"gpt-2", "qwen2", "gpt-4o", "deepseek-llm", "deepseek-v3", "kimi-k2", "bloom",
                           "falcon", "tiny_aya", "superbpe", "afmoe", "exaone-moe", "jais-2", "gemma4"}) {
    const PreTokenizer splitter(*find_pre_tokenizer(name));
    for (const std::string& text : texts) {
      std::size_t n_bytes = 0;
      splitter.split(text, [&](std::string_view word) { n_bytes += word.size(); });
      EXPECT_EQ(n_bytes, text.size()) << name;
    }
  }
}

}  // namespace
}  // namespace sluice::tokenizer
