// Goal: every instruction set has all that the kernels need, and what one set lacks comes from the nearest
// one below.
#include "kernels/isa_traits.hpp"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "platform/cpu_features.hpp"

namespace sluice::kernels {
namespace {

std::vector<IsaTraits> copy_of_table() {
  return {isa_table().begin(), isa_table().end()};
}
IsaTraits& entry(std::vector<IsaTraits>& table, Isa isa) {
  return table[static_cast<std::size_t>(isa)];
}

TEST(IsaTable, HasTheEntriesInOrderAndEachPointsDown) {
  ASSERT_EQ(isa_table().size(), platform::all_isas().size());
  for (std::size_t i = 0; i < isa_table().size(); ++i) {
    EXPECT_EQ(isa_table()[i].isa, platform::all_isas()[i]);
    EXPECT_EQ(static_cast<std::size_t>(isa_table()[i].isa), i);
    EXPECT_TRUE(i == 0 || isa_table()[i].below < isa_table()[i].isa);
  }
}

TEST(IsaTable, SetsOfThisBuildsArchitectureAreFull) {
  for (const IsaTraits& traits : isa_table()) {
    const char* name = platform::isa_name(traits.isa);
    // All or nothing: sets of other architectures have nothing at all.
    EXPECT_EQ(traits.find_gemm == nullptr, traits.vector_math == nullptr) << name;
    EXPECT_EQ(traits.find_gemm == nullptr, traits.attention_math == nullptr) << name;
    if (traits.find_gemm == nullptr) continue;
    EXPECT_NE(traits.find_gemm(TensorType::q4_k).gemm, nullptr) << name;
    EXPECT_EQ(traits.find_gemm(TensorType::q4_k).isa, traits.isa) << name;
    EXPECT_NE(traits.vector_math().sum_squares, nullptr) << name;
    EXPECT_NE(traits.attention_math().score, nullptr) << name;
  }
}

TEST(IsaTable, WhatTheMachineRunsServesItself) {
  for (const Isa isa : platform::supported_isas()) {
    const IsaTraits& traits = isa_table()[static_cast<std::size_t>(isa)];
    ASSERT_NE(traits.vector_math, nullptr) << platform::isa_name(isa);
    EXPECT_EQ(&vector_math(isa), &traits.vector_math());
    EXPECT_EQ(&attention_math(isa), &traits.attention_math());
    EXPECT_EQ(find_gemm(TensorType::q4_k, isa).isa, isa);
  }
}

TEST(IsaTable, ASetWithoutKernelsIsServedByTheNearestBelow) {
  for (const IsaTraits& traits : isa_table()) {
    if (traits.isa == Isa::scalar || traits.find_gemm == nullptr) continue;
    std::vector<IsaTraits> table = copy_of_table();
    IsaTraits& without = entry(table, traits.isa);
    const IsaTraits& below = entry(table, traits.below);
    without.find_gemm = nullptr;
    without.vector_math = nullptr;
    without.attention_math = nullptr;
    EXPECT_EQ(serving_gemm(table, TensorType::q4_k, traits.isa).isa, traits.below);
    EXPECT_EQ(serving(std::span<const IsaTraits>(table), traits.isa, &IsaTraits::vector_math),
              below.vector_math);
    EXPECT_EQ(serving(std::span<const IsaTraits>(table), traits.isa, &IsaTraits::attention_math),
              below.attention_math);
  }
}

GemmKernel no_kernel(TensorType /*type*/) noexcept {
  return {};
}

TEST(IsaTable, ATypeWithoutAKernelIsServedByTheNearestBelow) {
  std::vector<IsaTraits> table = copy_of_table();
  for (IsaTraits& traits : table) {
    if (traits.isa == Isa::scalar) continue;
    const auto kept = traits.find_gemm;
    traits.find_gemm = no_kernel;
    const Isa expected = serving_gemm(table, TensorType::q4_k, traits.below).isa;
    EXPECT_EQ(serving_gemm(table, TensorType::q4_k, traits.isa).isa, expected);
    EXPECT_NE(serving_gemm(table, TensorType::q4_k, traits.isa).gemm, nullptr);
    EXPECT_EQ(serving_gemm(table, TensorType::i32, traits.isa).gemm, nullptr);
    traits.find_gemm = kept;
  }
}

}  // namespace
}  // namespace sluice::kernels
