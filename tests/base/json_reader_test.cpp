// Goal: texts of the expected shape are read exactly, everything else is refused with its place, and no text
// can make the reader crash. Method: hand-made texts, and all prefixes and single-byte changes of one.
#include "base/json_reader.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace sluice::base {
namespace {

/// Where reading `text` as any one value fails, or -1.
int failure_offset(std::string_view text) {
  try {
    JsonReader reader(text);
    reader.skip_value();
    reader.end();
    return -1;
  } catch (const JsonError& error) {
    return static_cast<int>(error.offset);
  }
}

TEST(JsonReader, ReadsMembersAndElementsInOrder) {
  JsonReader reader(R"( {"a": [1, 2,3 ], "skipped": {"x": [true, null, -1.5e3, "\n"]}, "b": 7} )");
  std::string key;
  std::vector<std::uint64_t> numbers;
  reader.begin_object();
  while (reader.next_key(key)) {
    if (key == "a") {
      reader.begin_array();
      while (reader.next_element()) numbers.push_back(reader.number(100));
    } else if (key == "b") {
      numbers.push_back(reader.number(7));
    } else {
      reader.skip_value();
    }
  }
  reader.end();
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{1, 2, 3, 7}));
}

TEST(JsonReader, ReadsEscapesAsUtf8) {
  JsonReader reader(R"("a\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00")");
  EXPECT_EQ(reader.string(100), "a\"\\/\b\f\n\r\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

TEST(JsonReader, NumbersKeepTheirLimits) {
  constexpr std::uint64_t k_largest = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(JsonReader("18446744073709551615").number(k_largest), k_largest);
  EXPECT_EQ(JsonReader("0").number(0), 0u);
  EXPECT_EQ(JsonReader("255").number(255), 255u);
  for (const char* text : {"256", "-1", "1.0", "1e2", "01", "", "x", "18446744073709551616"})
    EXPECT_THROW(JsonReader(text).number(255), JsonError) << text;
  EXPECT_THROW(JsonReader("18446744073709551616").number(k_largest), JsonError);
}

TEST(JsonReader, RefusesWhatIsNotJsonWithItsPlace) {
  EXPECT_EQ(failure_offset("[1, 2"), 5);
  EXPECT_EQ(failure_offset("[1 2]"), 3);
  EXPECT_EQ(failure_offset("{\"a\" 1}"), 5);
  EXPECT_EQ(failure_offset("[1,]"), 3);
  EXPECT_EQ(failure_offset("tru"), 0);
  EXPECT_EQ(failure_offset("1 1"), 2);
  for (const char* text :
       {"", "-", "1.", "1e", "\"", "\"\\x\"", "\"\\ud800\"", "\"\\u12\"", "{1:2}", "nul", "\"\t\""})
    EXPECT_NE(failure_offset(text), -1) << text;
}

TEST(JsonReader, BoundsNestingAndStrings) {
  const std::string deep(JsonReader::k_max_depth, '[');
  EXPECT_EQ(failure_offset(deep + std::string(JsonReader::k_max_depth, ']')), -1);
  EXPECT_EQ(failure_offset(deep + "[]" + std::string(JsonReader::k_max_depth, ']')),
            static_cast<int>(JsonReader::k_max_depth));
  EXPECT_EQ(JsonReader("\"abc\"").string(3), "abc");
  EXPECT_THROW(JsonReader("\"abcd\"").string(3), JsonError);
}

TEST(JsonReader, NoPrefixAndNoChangedByteCrashes) {
  const std::string text = R"({"a": [1, -2.5, "\u00e9x", true], "b": {"c": null}})";
  EXPECT_EQ(failure_offset(text), -1);
  for (std::size_t n = 0; n < text.size(); ++n) EXPECT_NE(failure_offset(text.substr(0, n)), -1) << n;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = text;
      changed[i] = static_cast<char>(byte);
      EXPECT_LE(failure_offset(changed), static_cast<int>(text.size()));
    }
  }
}

}  // namespace
}  // namespace sluice::base
