// The built-in model's vocabulary: text comes back as it went in, also in parts, also from many threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/test_data.hpp"
#include "tokenizer/normalize.hpp"
#include "tokenizer/utf8.hpp"
#include "tokenizer/vocab_support.hpp"

namespace sluice::tokenizer {
namespace {

const Tokenizer& builtin() {
  static const auto tokenizer = test::load_tokenizer(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"));
  return *tokenizer;
}

char32_t random_code_point(std::mt19937& random) {
  // Short scripts and planes alike, so that most texts mix them.
  constexpr std::pair<char32_t, char32_t> k_ranges[] = {
      {0x00, 0x7F},     {0x80, 0x2FF},      {0x300, 0x36F},     {0x370, 0x5FF},   {0x600, 0xDFF},
      {0x1100, 0x11FF}, {0x2000, 0x2BFF},   {0x3000, 0x30FF},   {0x4E00, 0x9FFF}, {0xAC00, 0xD7FF},
      {0xE000, 0xFFFF}, {0x1F300, 0x1FAFF}, {0x10000, 0x10FFFF}};
  const auto& [low, high] = k_ranges[random() % std::size(k_ranges)];
  return low + static_cast<char32_t>(random() % (high - low + 1));
}

std::string random_text(std::mt19937& random, std::size_t n_characters) {
  std::string text;
  for (std::size_t i = 0; i < n_characters; ++i) append_utf8(text, random_code_point(random));
  return text;
}

void expect_round_trip(const std::string& text) {
  const auto tokens = builtin().encode(text);
  const std::string whole = builtin().decode(tokens);
  EXPECT_EQ(whole, text);
  StreamDecoder decoder(builtin());
  std::string joined;
  for (const TokenId token : tokens) {
    const std::string part = decoder.push(token);
    ASSERT_EQ(valid_utf8_prefix(part, 0), part.size());
    joined += part;
  }
  EXPECT_EQ(joined + decoder.finish(), whole);
}

TEST(RoundTrip, AsciiAndEmojiComeBack) {
  std::string ascii;
  for (char c = 0; c < 127; ++c) ascii.push_back(c);
  for (const std::string& text :
       {ascii, std::string(), std::string(" "), std::string("  two  spaces  "),
        std::string("\r\n\t tabs\n\n\n"),
        std::string("\U0001F468\u200D\U0001F469\u200D\U0001F467 \U0001F1EB\U0001F1F7 \u2764\uFE0F"),
        std::string("<|im_start|>user\nhi<|im_end|>\n")}) {
    expect_round_trip(text);
  }
}

TEST(RoundTrip, RandomUnicodeComesBackInFormC) {
  std::mt19937 random(20240607);
  for (int i = 0; i < 300; ++i) expect_round_trip(normalize_nfc(random_text(random, 1 + random() % 40)));
}

TEST(RoundTrip, OtherFormsComeBackAsFormC) {
  // The qwen2 family normalizes (its tokenizer.json says NFC), so the one thing lost is the choice of form.
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::string text = random_text(random, 30);
    EXPECT_EQ(builtin().decode(builtin().encode(text)), normalize_nfc(text));
  }
}

TEST(RoundTrip, RandomBytesKeepEveryByte) {
  std::mt19937 random(99);
  for (int i = 0; i < 300; ++i) {
    std::string bytes;
    for (std::size_t n = random() % 200; n > 0; --n) bytes.push_back(static_cast<char>(random()));
    std::string back;
    for (const TokenId token : builtin().encode(bytes)) back += builtin().token_bytes(token);
    EXPECT_EQ(back, normalize_nfc(bytes));
  }
}

TEST(RoundTrip, ControlTokensAreParsedOnRequestOnly) {
  const std::string text = "<|im_start|>user\nhi<|im_end|>";
  const auto parsed = builtin().encode(text, {.parse_special = true});
  EXPECT_EQ(parsed.front(), builtin().find_token("<|im_start|>"));
  EXPECT_EQ(parsed.back(), builtin().eos());
  EXPECT_TRUE(builtin().is_end_of_generation(parsed.back()));
  EXPECT_EQ(builtin().decode(parsed), "user\nhi");
  EXPECT_EQ(builtin().decode(parsed, true), text);
  EXPECT_THAT(builtin().encode(text), testing::Not(testing::Contains(builtin().eos())));
}

// Quadratic work on a megabyte would run for hours; CTest's timeout is the limit.
TEST(RoundTrip, AMegabyteOfOneCharacterEncodesInNearLinearTime) {
  constexpr std::size_t k_bytes = 1u << 20;
  std::string marks, special_starts;
  for (std::size_t i = 0; i < k_bytes / 4; ++i) marks += "\u0301\u0316";
  for (std::size_t i = 0; i < k_bytes / 5; ++i) special_starts += "<|im_";
  for (const std::string& text :
       {std::string(k_bytes, 'a'), std::string(k_bytes, ' '), std::string(k_bytes, '\n'),
        std::string(k_bytes, '!'), std::string(k_bytes, '\xFF'), marks, special_starts}) {
    std::size_t n_bytes = 0;
    for (const TokenId token : builtin().encode(text, {.parse_special = true})) {
      n_bytes += builtin().token_bytes(token).size();
    }
    EXPECT_EQ(n_bytes, text.size());
  }
}

TEST(RoundTrip, ThreadsShareOneTokenizer) {
  const std::string text =
      "Once upon a time there was a llama, \u4F60\u597D \U0001F999. " + std::string(1000, 'x');
  const auto expected = builtin().encode(text);
  std::vector<std::vector<TokenId>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) result = builtin().encode(text);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace sluice::tokenizer
