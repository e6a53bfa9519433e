// UTF-8 steps, normalization, the byte alphabet and the streaming decoder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/normalize.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {
namespace {

TEST(Utf8, EveryScalarValueIsReadBackAsWritten) {
  for (char32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code_point);
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_EQ(step.kind, Utf8Kind::valid) << static_cast<std::uint32_t>(code_point);
    ASSERT_EQ(step.code_point, code_point);
    ASSERT_EQ(step.length, text.size());
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(utf8_step(std::string_view(text).substr(0, cut), 0).kind, Utf8Kind::incomplete);
    }
  }
}

TEST(Utf8, OverlongSurrogateAndTooLargeFormsAreInvalid) {
  for (const char* text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
        "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF"}) {
    const Utf8Step step = utf8_step(text, 0);
    EXPECT_EQ(step.kind, Utf8Kind::invalid);
    EXPECT_EQ(step.length, 1u) << "no prefix of these could begin a character";
  }
  EXPECT_EQ(utf8_step("\xE4\xBDx", 0).length, 2u) << "a truncated character is one broken part";
}

TEST(Normalize, ComposesAndOrdersMarks) {
  EXPECT_EQ(normalize_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(normalize_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(normalize_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(normalize_nfc("plain"), "plain");
  EXPECT_EQ(normalize_nfc("\xFF"
                          "e\u0301\xE4\xBD"),
            "\xFF\u00E9\xE4\xBD");
}

TEST(Normalize, CutsOfLongTextDoNotShow) {
  std::string text, expected;
  for (int i = 0; i < 20'000; ++i) {
    text += i % 3 == 0 ? "\u4F60" : "e\u0301";
    expected += i % 3 == 0 ? "\u4F60" : "\u00E9";
  }
  EXPECT_EQ(normalize_nfc(text), expected);
}

TEST(Normalize, AMegabyteOfMarksInTheWrongOrderEnds) {
  std::string text;
  for (int i = 0; i < 1 << 18; ++i) text += "\u0301\u0316";
  EXPECT_EQ(normalize_nfc(text).size(), text.size());
}

TEST(Normalize, TheCheapTestIsNeverWronglySure) {
  for (char32_t code_point = 0x80; code_point < 0x3000; ++code_point) {
    std::string text = "e";
    append_utf8(text, code_point);
    if (is_surely_nfc(text)) {
      ASSERT_EQ(normalize_nfc(text), text) << static_cast<std::uint32_t>(code_point);
    }
  }
  EXPECT_TRUE(is_surely_nfc("Stra\u00DFe"));
  EXPECT_FALSE(is_surely_nfc("e\u0301"));
}

TEST(ByteAlphabet, AllBytesComeBack) {
  std::string bytes, spelled, back;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
    append_byte_spelling(spelled, static_cast<unsigned char>(byte));
  }
  append_spelled_bytes(back, spelled);
  EXPECT_EQ(back, bytes);
  std::string foreign;
  append_spelled_bytes(foreign, "\u4F60\u0120");
  EXPECT_EQ(foreign, "\u4F60 ");
}

/// A tokenizer whose tokens are given byte strings.
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<TokenId> encode(std::string_view, const EncodeOptions&) const override { return {}; }
  std::vector<TokenId> encode_pieces(std::span<const TextPiece>, TokenId) const override { return {}; }
  std::string token_bytes(TokenId token, bool) const override {
    return pieces_.at(static_cast<std::size_t>(token));
  }
  std::size_t vocab_size() const noexcept override { return pieces_.size(); }
  std::string_view token_text(TokenId) const override { return {}; }
  TokenKind token_kind(TokenId) const override { return TokenKind::normal; }
  std::string_view model_name() const noexcept override { return {}; }
  std::string_view pre_tokenizer() const noexcept override { return {}; }
  TokenId find_token(std::string_view) const noexcept override { return -1; }

 private:
  std::vector<std::string> pieces_;
};

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  const PieceTokenizer tokenizer({"\xF0\x9F", "\xA6", "\x99!", "\xE4", "x"});
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0), "");
  EXPECT_EQ(decoder.push(1), "");
  EXPECT_EQ(decoder.push(2), "\U0001F999!");
  EXPECT_EQ(decoder.push(3), "");
  EXPECT_EQ(decoder.push(4), "\uFFFDx") << "a proven break is replaced at once";
  EXPECT_EQ(decoder.push(0), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, AnySplitOfTheBytesGivesTheSameText) {
  const std::string bytes = "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\xA6\x99\xFF\xE4\xBD\xC3\xED\xA0\x80\xF0\x9F\x80";
  std::vector<std::string> singles;
  std::vector<TokenId> all;
  for (const char byte : bytes) {
    all.push_back(static_cast<TokenId>(singles.size()));
    singles.emplace_back(1, byte);
  }
  const std::string whole = PieceTokenizer({bytes}).decode({0});
  EXPECT_EQ(PieceTokenizer(singles).decode(all), whole);
  for (std::size_t first = 0; first <= bytes.size(); ++first) {
    for (std::size_t second = first; second <= bytes.size(); ++second) {
      const PieceTokenizer tokenizer(
          {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)});
      StreamDecoder decoder(tokenizer);
      std::string joined;
      for (const TokenId token : {0, 1, 2}) {
        const std::string part = decoder.push(token);
        ASSERT_EQ(valid_utf8_prefix(part, 0), part.size()) << "half a character left the decoder";
        joined += part;
      }
      ASSERT_EQ(joined + decoder.finish(), whole) << first << ' ' << second;
    }
  }
}

}  // namespace
}  // namespace sluice::tokenizer
