// Goal: sizes are read and written the way users type them.
#include "base/units.hpp"

#include <gtest/gtest.h>

namespace sluice::base {
namespace {

TEST(Units, ParsesTheUsualSpellings) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("1048576"), 1048576u);
  EXPECT_EQ(parse_bytes("24M"), 24u << 20);
  EXPECT_EQ(parse_bytes("24 MiB"), 24u << 20);
  EXPECT_EQ(parse_bytes("6g"), 6ull << 30);
  EXPECT_EQ(parse_bytes("1.5GB"), 3ull << 29);
  EXPECT_EQ(parse_bytes("2T"), 2ull << 40);
}

TEST(Units, RefusesWhatIsNotASize) {
  for (const char* text : {"", "G", "-1", "-5G", "1X", "1MM", "nan", "inf", "1e400", "99999999T", "1 G 2"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
}

TEST(Units, FormatsThreeDigits) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(18 * 1024), "18.0 KiB");
  EXPECT_EQ(format_bytes(1610612736), "1.50 GiB");
  EXPECT_EQ(format_bytes(1023 * 1024), "1.00 MiB");
}

}  // namespace
}  // namespace sluice::base
