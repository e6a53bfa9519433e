// Goal: every tensor type has the name and the block shape of the file format.
#include "gguf/types.hpp"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "support/test_data.hpp"

namespace sluice::gguf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Written as the sum of a block's fields (scales, high bits, quants), which is how the format defines them.
TEST(TensorTypes, BlockSizesAreTheSumsOfTheirFields) {
  constexpr std::uint32_t k_half = 2;
  EXPECT_EQ(type_traits(TensorType::q4_0).block_bytes, k_half + 32 / 2);
  EXPECT_EQ(type_traits(TensorType::q4_1).block_bytes, 2 * k_half + 32 / 2);
  EXPECT_EQ(type_traits(TensorType::q5_0).block_bytes, k_half + 32 / 8 + 32 / 2);
  EXPECT_EQ(type_traits(TensorType::q5_1).block_bytes, 2 * k_half + 32 / 8 + 32 / 2);
  EXPECT_EQ(type_traits(TensorType::q8_0).block_bytes, k_half + 32);
  EXPECT_EQ(type_traits(TensorType::q8_1).block_bytes, 2 * k_half + 32);
  EXPECT_EQ(type_traits(TensorType::q2_k).block_bytes, 256 / 16 + 256 / 4 + 2 * k_half);
  EXPECT_EQ(type_traits(TensorType::q3_k).block_bytes, 256 / 8 + 256 / 4 + 12 + k_half);
  EXPECT_EQ(type_traits(TensorType::q4_k).block_bytes, 2 * k_half + 12 + 256 / 2);
  EXPECT_EQ(type_traits(TensorType::q5_k).block_bytes, 2 * k_half + 12 + 256 / 8 + 256 / 2);
  EXPECT_EQ(type_traits(TensorType::q6_k).block_bytes, 256 / 2 + 256 / 4 + 256 / 16 + k_half);
  EXPECT_EQ(type_traits(TensorType::q8_k).block_bytes, 4 + 256 + 2 * 256 / 16);
  EXPECT_EQ(type_traits(TensorType::mxfp4).block_bytes, 1 + 32 / 2);
  EXPECT_EQ(type_traits(TensorType::nvfp4).block_bytes, 64 / 16 + 64 / 2);
  EXPECT_EQ(type_traits(TensorType::q1_0).block_bytes, k_half + 128 / 8);
  EXPECT_EQ(type_traits(TensorType::q2_0).block_bytes, k_half + 64 / 4);
  EXPECT_EQ(type_traits(TensorType::q2_0_g128).block_bytes, k_half + 128 / 4);
}

TEST(TensorTypes, RemovedAndUnknownIdsHaveNoTraits) {
  for (const std::uint32_t type_id :
       {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 63u, 77u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_FALSE(find_type_traits(type_id)) << type_id;
  }
}

TEST(TensorTypes, IdsThatAreNoneSayWhatTheyWereAndWhatToTake) {
  const auto expect = [](std::uint32_t id, const std::string& name, const std::string& instead) {
    EXPECT_THAT(describe_unknown_type(id),
                AllOf(HasSubstr(fmt::format("type {}", id)), HasSubstr(name), HasSubstr(instead)));
  };
  expect(4, "Q4_2", "take the Q4_0 file");
  expect(5, "Q4_3", "take the Q4_1 file");
  for (const std::uint32_t id : {31u, 32u, 33u})
    expect(id, "(Q4_0_", "removed from the GGUF format: take the Q4_0");
  for (const std::uint32_t id : {36u, 37u, 38u}) expect(id, "(IQ4_NL_", "take the IQ4_NL file");
  expect(137, "IQ2_K", "ik_llama.cpp");
  expect(144, "IQ4_KS", "for example IQ4_XS");
  expect(142, "PQ2_0", "for example Q2_0");
  expect(143, "PrismML", "for example TQ1_0");
  expect(399, "ik_llama.cpp", "of the same model");
  for (const std::uint32_t id : {43u, 63u, 77u, 512u, 0xffffffffu})
    expect(id, "unknown", "newer than this program");
}

TEST(TensorTypes, EveryKnownIdNamesItselfAndNoTwoShareAName) {
  std::set<std::string> names;
  std::size_t n_types = 0;
  for (const TypeTraits& traits : all_types()) {
    ++n_types;
    EXPECT_LT(static_cast<std::uint32_t>(traits.type), k_type_ids);
    EXPECT_GT(traits.block_elements, 0u);
    EXPECT_GT(traits.block_bytes, 0u);
    EXPECT_STREQ(type_name(traits.type), traits.name);
    names.insert(traits.name);
    const auto of_file = find_type_traits(traits.file_id);
    ASSERT_TRUE(of_file) << traits.name;
    EXPECT_EQ(of_file->type, traits.type == TensorType::q2_0_g128 ? TensorType::q2_0 : traits.type);
    // The rate that stands for its own is one that is measured.
    EXPECT_EQ(type_traits(traits.similar).similar, traits.similar) << traits.name;
    EXPECT_EQ(type_traits(traits.similar).use, traits.use) << traits.name;
  }
  EXPECT_EQ(n_types, 36u);
  EXPECT_EQ(names.size(), n_types);
}

TEST(TensorTypes, RowBytesFollowFromBlocks) {
  EXPECT_EQ(row_bytes(TensorType::f32, 3), 12u);
  EXPECT_EQ(row_bytes(TensorType::q4_k, 4096), 4096u / 256 * 144);
  EXPECT_EQ(row_bytes(TensorType::q8_0, 1ull << 40), (1ull << 40) / 32 * 34);
}

// The reference rows name their type id and their exact size: "01_f16.bin" holds 8 rows of 512 elements.
TEST(TensorTypes, SizesAgreeWithReferenceRows) {
  SLUICE_NEEDS_DATA(folder, "quant");
  std::size_t n_checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".bin") continue;
    const auto type_id =
        static_cast<std::uint32_t>(std::stoul(entry.path().filename().string().substr(0, 2)));
    const auto traits = find_type_traits(type_id);
    ASSERT_TRUE(traits) << entry.path();
    EXPECT_EQ(entry.file_size(), 8 * row_bytes(traits->type, 512)) << entry.path();
    ++n_checked;
  }
  EXPECT_GE(n_checked, 20u);
}

}  // namespace
}  // namespace sluice::gguf
