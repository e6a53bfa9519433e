// Goal: a run that was swapped out says so. Method: invented statistics.
#include "cli/swap_warning.hpp"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

TEST(SwapWarning, SaysHowMuchWasSwappedOut) {
  Stats stats;
  stats.rss_bytes = std::uint64_t{3} << 30;
  EXPECT_EQ(swap_warning(stats), "");
  stats.swapped_bytes = std::uint64_t{1} << 20;
  EXPECT_EQ(swap_warning(stats), "") << "what nothing uses any more";
  stats.swapped_bytes = std::uint64_t{512} << 20;
  const std::string text = swap_warning(stats);
  EXPECT_NE(text.find("512 MiB of this process were swapped out"), std::string::npos) << text;
  EXPECT_NE(text.find("3.00 GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("--memory"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::cli
