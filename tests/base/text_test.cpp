// Goal: no text of a file, a path or a model can command a terminal.
#include "base/text.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sluice::base {
namespace {

/// U+0080 to U+07FF in UTF-8.
std::string two_bytes(unsigned code_point) {
  return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

TEST(Printable, ShowsEveryControlCharacter) {
  for (unsigned code = 0; code < 0x100; ++code) {
    const std::string text = code < 0x80 ? std::string(1, static_cast<char>(code)) : two_bytes(code);
    const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    const std::string shown = printable(text);
    if (is_control) {
      EXPECT_EQ(shown.front(), '\\') << code;
      for (const char byte : shown) EXPECT_TRUE(byte >= 0x20 && byte < 0x7F) << code;
    } else {
      EXPECT_EQ(shown, text);
    }
  }
}

TEST(Printable, ShowsTheBytesOfWhatIsNoUtf8) {
  // A terminal that does not use UTF-8 obeys the byte 0x9b alone.
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m");
  EXPECT_EQ(printable("\xff\xc2"), "\\xff\\xc2");
  EXPECT_EQ(printable("\xc2\x1b"), "\\xc2\\x1b");
}

TEST(Printable, LeavesReadableTextAlone) {
  for (const char* text : {"", "plain \\ \"text\"", "gr\xc3\xbc\xc3\x9f", "\xc2\xa0", "\xe2\x82\xac",
                           "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, IsOneLineAndKeepsLinesOnlyWhereAsked) {
  EXPECT_EQ(printable("a\n\tb\r"), "a\\n\\tb\\x0d");
  EXPECT_EQ(printable_lines("a\n\tb\r\x1b"), "a\n\tb\\x0d\\x1b");
}

}  // namespace
}  // namespace sluice::base
