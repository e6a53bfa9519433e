// The fuzz target on seeds with random changes; fuzz/stop_fuzz.cpp says what it checks.
#include <gtest/gtest.h>

#include "support/fuzz_inputs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

TEST(StopStrings, GiveTheSameTextHoweverItIsCut) {
  sluice::test::feed_fuzz_target(LLVMFuzzerTestOneInput, "stop", 20000, 1);
}
