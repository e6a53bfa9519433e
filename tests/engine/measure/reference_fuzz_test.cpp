// The fuzz target on seeds with random changes; fuzz/reference_fuzz.cpp says what it checks.
#include <gtest/gtest.h>

#include "support/fuzz_inputs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

TEST(References, AreReadOrRefusedWhateverTheirBytes) {
  sluice::test::feed_fuzz_target(LLVMFuzzerTestOneInput, "reference", 20000, 1);
}
