#include "engine/generate/stop_scanner.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "sluice/error.hpp"

namespace sluice::engine {
namespace {

struct Result {
  std::string text;
  std::string match;
  bool operator==(const Result&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Result& result) {
  return out << '"' << result.text << "\" ended by \"" << result.match << '"';
}

Result scan(const std::vector<std::string>& stop, const std::vector<std::string>& pieces) {
  StopScanner scanner(stop);
  std::string text;
  for (const std::string& piece : pieces) scanner.push(piece, text);
  scanner.finish(text);
  return {text, std::string(scanner.match())};
}

/// The definition, byte by byte: the first end at which some stop string is complete, the longest there.
Result by_definition(const std::vector<std::string>& stop, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& candidate : stop) {
      if (candidate.size() > best.size() && candidate.size() <= end &&
          text.compare(end - candidate.size(), candidate.size(), candidate) == 0) {
        best = candidate;
      }
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopScanner, WithoutStopStringsEverythingPassesAtOnce) {
  StopScanner scanner({});
  std::string out;
  scanner.push("one", out);
  EXPECT_EQ(out, "one");
  scanner.finish(out);
  EXPECT_EQ(out, "one");
  EXPECT_FALSE(scanner.matched());
}

TEST(StopScanner, FindsAStopStringThatSpansPieces) {
  EXPECT_EQ(scan({"<end>"}, {"text <", "en", "d> more", " and more"}), (Result{"text ", "<end>"}));
}

TEST(StopScanner, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopScanner scanner({"\nUser:", "END"});
  std::string out;
  scanner.push("Hello\n", out);
  EXPECT_EQ(out, "Hello");
  scanner.push("U", out);
  EXPECT_EQ(out, "Hello");
  scanner.push("nder E", out);
  EXPECT_EQ(out, "Hello\nUnder ");
  scanner.push("N", out);
  EXPECT_EQ(out, "Hello\nUnder ");
  scanner.finish(out);
  EXPECT_EQ(out, "Hello\nUnder EN");
  EXPECT_FALSE(scanner.matched());
}

TEST(StopScanner, AFailedMatchMayHoldTheStartOfTheNext) {
  EXPECT_EQ(scan({"aab"}, {"a", "a", "a", "b"}), (Result{"a", "aab"}));
  EXPECT_EQ(scan({"abab!"}, {"aba", "bab", "!"}), (Result{"ab", "abab!"}));
}

TEST(StopScanner, TheMatchThatIsCompleteFirstCounts) {
  EXPECT_EQ(scan({"abcd", "bc"}, {"abcd"}), (Result{"a", "bc"}));
  EXPECT_EQ(scan({"abcd", "bc"}, {"a", "b", "c", "d"}), (Result{"a", "bc"}));
  EXPECT_EQ(scan({"c", "abc", "bc"}, {"xabc"}), (Result{"x", "abc"}));
}

TEST(StopScanner, IgnoresEverythingAfterTheMatch) {
  StopScanner scanner({"."});
  std::string out;
  scanner.push("a.b", out);
  scanner.push("c", out);
  scanner.finish(out);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(scanner.match(), ".");
}

TEST(StopScanner, TheResultDoesNotDependOnHowTheTextIsCut) {
  std::mt19937 random(20);
  const auto random_text = [&random](std::size_t longest) {
    std::string text(1 + random() % longest, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  int n_matches = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stop(1 + random() % 3);
    for (std::string& one : stop) one = random_text(6);
    const std::string text = random_text(40);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + random() % 5;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    const Result expected = by_definition(stop, text);
    n_matches += expected.match.empty() ? 0 : 1;
    ASSERT_EQ(scan(stop, pieces), expected) << "round " << round << ", text " << text;
    ASSERT_EQ(scan(stop, {text}), expected) << "round " << round << ", text " << text;
  }
  // Both outcomes were exercised.
  EXPECT_GT(n_matches, 200);
  EXPECT_LT(n_matches, 1990);
}

TEST(StopScanner, NeverSplitsACharacter) {
  StopScanner scanner({"\u00e9t\u00e9"});
  std::string out;
  for (const char* piece : {"l'\u00e9", "t", "\u00e8"}) {
    scanner.push(piece, out);
    EXPECT_TRUE(is_utf8(out)) << out;
  }
  EXPECT_EQ(out, "l'\u00e9t\u00e8");
}

TEST(StopScanner, RefusesStopStringsThatCannotWork) {
  const auto code = [](std::vector<std::string> stop) {
    try {
      StopScanner scanner(std::move(stop));
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code({"ok", ""}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({"\xa9"}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({std::string(StopScanner::k_max_bytes + 1, 'x')}), ErrorCode::invalid_argument);
  EXPECT_EQ(code(std::vector<std::string>(StopScanner::k_max_strings + 1, "x")), ErrorCode::invalid_argument);
  StopScanner largest(
      std::vector<std::string>(StopScanner::k_max_strings, std::string(StopScanner::k_max_bytes, 'x')));
  EXPECT_FALSE(largest.matched());
}

TEST(IsUtf8, FollowsTheTableOfWellFormedSequences) {
  for (const char* good : {"", "plain", "\u00e9", "\u20ac", "\U0001f600", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf",
                           "\xc2\x80", "\xe0\xa0\x80"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc1\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x9f\x80",
                          "\xf0\x8f\x80\x80", "\xff", "a\xc3"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace sluice::engine
