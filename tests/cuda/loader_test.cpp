// Goal: where the GPU cannot be used, an error says what is missing and that the CPU does it.
#include "cuda/loader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/error.hpp"

namespace sluice::cuda {
namespace {

TEST(CudaLoader, SaysWhatIsMissing) {
  try {
    const auto ops = make_ops(0);
    EXPECT_THAT(ops->name(), ::testing::StartsWith("CUDA, "));
    EXPECT_THROW(make_ops(1000), Error);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("GPU"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("run on the CPU"));
  }
}

}  // namespace
}  // namespace sluice::cuda
