// Goal: text from files cannot break a terminal, a JSON document or a message.
#include "gguf/text.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sluice::gguf {
namespace {

TEST(Utf8, AcceptsTheEdgesOfEveryLength) {
  for (const char* text : {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_valid_utf8(text)) << printable(text);
  }
}

TEST(Utf8, RefusesOverlongSurrogateTruncatedAndTooLarge) {
  for (const char* text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xc2z"}) {
    EXPECT_FALSE(is_valid_utf8(text)) << printable(text);
  }
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("plain text"), "plain text");
  EXPECT_EQ(printable("\x1b[2J\n\t\"\\"), "\\x1b[2J\\n\\t\\\"\\\\");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
}

TEST(Printable, CutsAtACharacterAndNeverExceedsTheLimit) {
  const std::string text = "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\x01 tail";
  for (std::size_t max_bytes = 0; max_bytes <= 24; ++max_bytes) {
    const std::string shown = printable(text, max_bytes);
    EXPECT_LE(shown.size(), max_bytes);
    EXPECT_TRUE(is_valid_utf8(shown)) << max_bytes;
  }
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdefg", 6), "abc...");
}

}  // namespace
}  // namespace sluice::gguf
