#include "base/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sluice/warnings.hpp"

namespace sluice {
namespace {

TEST(Warnings, GoToTheSinkOnceEachAndToStandardErrorWithoutOne) {
  std::vector<std::string> told;
  ::testing::internal::CaptureStderr();
  set_warning_sink([&told](std::string_view text) { told.emplace_back(text); });
  base::warn("a text of {}", 1);
  base::warn("a text of {}", 1);
  base::warn("a text of {}", 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(told, (std::vector<std::string>{"a text of 1", "a text of 2"}));

  set_warning_sink({});
  ::testing::internal::CaptureStderr();
  base::warn("a text of {}", 2);
  base::warn("a text of {}", 3);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "sluice: warning: a text of 3\n");
  EXPECT_EQ(told.size(), 2u);
}

}  // namespace
}  // namespace sluice
