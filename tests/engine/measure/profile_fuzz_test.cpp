// The fuzz target on seeds with random changes; fuzz/profile_fuzz.cpp says what it checks.
#include <gtest/gtest.h>

#include "support/fuzz_inputs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

TEST(Profiles, AreUsedOrReportedWhateverTheirBytes) {
  sluice::test::feed_fuzz_target(LLVMFuzzerTestOneInput, "profile", 500, 1);
}
