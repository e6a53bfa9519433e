// Goal: `sluice tokenize` shows the tokens that `sluice run` would compute, and gives every text back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "sluice/tokenizer.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Outcome tokenize(const std::string& input, const Words& more = {}) {
  Process::Options options;
  options.input = input;
  Words words{"tokenize", "tales"};
  words.insert(words.end(), more.begin(), more.end());
  return sluice(words, options);
}

std::string output_of(const std::string& input, const Words& more = {}) {
  const Outcome outcome = tokenize(input, more);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.out;
}

nlohmann::json json_of(const std::string& input, Words more = {}) {
  more.emplace_back("--json");
  return nlohmann::json::parse(output_of(input, more));
}

Tokenizer tales() {
  return Tokenizer::open(builtin_model("tales-29m-moe-Q4_K_M.gguf"));
}

/// The text from -p, without standard input.
TEST(Tokenize, PrintsALineOfIdAndBytesForEachToken) {
  const Tokenizer tokenizer = tales();
  const std::vector<TokenId> ids = tokenizer.encode("the fox", true, true);
  std::string expected;
  for (const TokenId id : ids) {
    const std::string number = std::to_string(id);
    expected += std::string(7 - number.size(), ' ') + number + "  '" + tokenizer.token_bytes(id) + "'\n";
  }
  EXPECT_EQ(output_of("", {"-p", "the fox"}), expected);
}

TEST(Tokenize, ReadsTheArgumentAFileOrStandardInputAndEveryByteCounts) {
  const std::string text = "one\r\ntwo\n";
  const TempDir folder;
  write_bytes(folder / "text", text.data(), text.size());
  const std::string ids = output_of("", {"--ids", "-p", text});
  EXPECT_EQ(output_of(text, {"--ids"}), ids);
  EXPECT_EQ(output_of(text, {"--ids", "-f", "-"}), ids);
  EXPECT_EQ(output_of("", {"--ids", "-f", (folder / "text").string()}), ids);
  EXPECT_NE(output_of("", {"--ids", "-p", "one\r\ntwo"}), ids);
  EXPECT_EQ(output_of("", {"--ids", "-p", ""}), "");
}

TEST(Tokenize, IdsBecomeTheSameTextAgain) {
  for (const std::string text :
       {"Once upon a time, there was a fox.\n\n\tIt said: \xc3\xa9\xe4\xbd\xa0!", "x"}) {
    const std::string ids = output_of(text, {"--ids"});
    EXPECT_EQ(json_of(ids, {"--decode"})["text"], text);
    EXPECT_EQ(output_of(ids, {"--decode"}), text + "\n");
  }
  // As other programs write lists.
  const auto ids = json_of("the fox")["ids"].dump();
  EXPECT_EQ(json_of(ids, {"--decode"})["text"], "the fox");
}

TEST(Tokenize, ControlTokensAreReadAndShownUnlessPlainTextIsAskedFor) {
  const TokenId end = tales().find_token("<|im_end|>");
  ASSERT_GE(end, 0);
  EXPECT_EQ(json_of("<|im_end|>")["ids"], nlohmann::json::array({end}));
  const auto plain = json_of("<|im_end|>", {"--no-special"})["ids"];
  EXPECT_GT(plain.size(), 1u);
  const std::string id = std::to_string(end);
  EXPECT_EQ(json_of(id, {"--decode"})["text"], "<|im_end|>");
  EXPECT_EQ(json_of(id, {"--decode", "--no-special"})["text"], "");
}

TEST(Tokenize, JsonHoldsIdsTextsAndSpellings) {
  const auto json = json_of("the fox");
  const Tokenizer tokenizer = tales();
  ASSERT_EQ(json["tokens"].size(), json["n_tokens"].get<std::size_t>());
  std::string text;
  for (const auto& token : json["tokens"]) {
    text += token["text"].get<std::string>();
    EXPECT_EQ(token["spelling"], tokenizer.token_text(token["id"].get<TokenId>()));
  }
  EXPECT_EQ(text, "the fox");
  EXPECT_FALSE(json_of("the fox", {"--ids"}).contains("tokens"));
}

TEST(Tokenize, BytesThatATerminalObeysAreShown) {
  const std::string out = output_of("a\x1b[2J\x9b\n");
  EXPECT_THAT(out, HasSubstr("\\x1b"));
  EXPECT_THAT(out, HasSubstr("\\n'\n"));
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
}

TEST(Tokenize, WhatIsNoIdIsNamedWithItsPlaceAndTheRange) {
  const std::string last = std::to_string(tales().vocab_size() - 1);
  for (const std::string bad : {"-1", "1.5", "0x10", "fox", "99999999999999999999", "1;2"}) {
    const Outcome outcome = tokenize("0 1, " + bad, {"--decode"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err,
                HasSubstr("the id at place 3 is '" + bad + "', expected a whole number from 0 to " + last));
  }
  const Outcome beyond = tokenize(std::to_string(tales().vocab_size()), {"--decode"});
  EXPECT_THAT(beyond.err, HasSubstr("the id at place 1"));
}

TEST(Tokenize, OnlyTheHeaderIsNeeded) {
  const TempDir folder;
  const std::string whole = read_text(builtin_model("tales-29m-moe-Q4_K_M.gguf"));
  // The header with the vocabulary is less than half of the file.
  write_bytes(folder / "part.gguf", whole.data(), whole.size() / 2);
  const Outcome outcome = sluice({"tokenize", (folder / "part.gguf").string(), "-p", "the fox", "--ids"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, output_of("", {"-p", "the fox", "--ids"}));
}

TEST(Tokenize, APreTokenizerThatIsNotKnownIsRefused) {
  const Outcome outcome = tokenize("x", {"--pre-tokenizer", "none-such"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("none-such"));
  EXPECT_NE(output_of("2024", {"--pre-tokenizer", "gpt-2", "--ids"}), "");
}

}  // namespace
}  // namespace sluice::test
