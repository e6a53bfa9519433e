// Goal: references of other programs are read as written, and damaged or foreign files are refused with the
// reason before anything of their alleged size is allocated.
#include "engine/measure/reference_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sluice/error.hpp"
#include "support/reference_bytes.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::engine {
namespace {

using ::testing::HasSubstr;

ReferenceFile open(const std::vector<std::byte>& bytes) {
  return ReferenceFile(std::make_unique<test::MemorySource>("x.kld", bytes));
}

/// Two windows of 8 tokens: three rows of each.
std::vector<std::byte> small(std::uint32_t n_vocab = 5) {
  test::ReferenceBytes reference(8, n_vocab, 2);
  for (std::uint32_t i = 0; i < 16; ++i) reference.add_token(static_cast<TokenId>(i % n_vocab));
  for (std::uint32_t row = 0; row < 6; ++row) {
    std::vector<float> logits;
    for (std::uint32_t i = 0; i < n_vocab; ++i)
      logits.push_back(static_cast<float>((i * 7 + row * 3) % 11) - 5.0f);
    reference.add_row(logits);
  }
  return reference.bytes;
}

template <typename T>
std::vector<std::byte> with(std::vector<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return bytes;
}

std::string error_of(const std::vector<std::byte>& bytes, bool and_rows = false) {
  try {
    ReferenceFile file = open(bytes);
    std::vector<double> row(file.n_vocab());
    if (and_rows) file.read_row(0, file.first_scored(), row);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_file) << error.what();
    return error.what();
  }
  return "none";
}

TEST(ReferenceFile, GivesTokensAndRowsAsTheyWereWritten) {
  for (const std::uint32_t n_vocab : {5u, 6u}) {
    ReferenceFile file = open(small(n_vocab));
    EXPECT_EQ(file.n_ctx(), 8u);
    EXPECT_EQ(file.n_vocab(), n_vocab);
    EXPECT_EQ(file.n_chunks(), 2u);
    EXPECT_EQ(file.tokens(1)[0], static_cast<TokenId>(8 % n_vocab));
    std::vector<double> row(n_vocab);
    for (std::uint32_t index = 0; index < 6; ++index) {
      file.read_row(index / 3, 4 + index % 3, row);
      double sum = 0;
      for (std::uint32_t i = 0; i < n_vocab; ++i) sum += std::exp((i * 7 + index * 3) % 11 - 5.0);
      for (std::uint32_t i = 0; i < n_vocab; ++i) {
        const double expected = (i * 7 + index * 3) % 11 - 5.0 - std::log(sum);
        // Half a step of at most 10 / 65535.
        EXPECT_NEAR(row[i], expected, 5.1 / 65535) << index << ", " << i;
      }
    }
  }
}

TEST(ReferenceFile, IsRefusedAtEveryLengthButItsOwn) {
  std::vector<std::byte> bytes = small();
  const std::size_t whole = bytes.size();
  bytes.push_back({});
  EXPECT_THAT(error_of(bytes), HasSubstr("expected " + std::to_string(whole)));
  while (!bytes.empty()) {
    bytes.pop_back();
    EXPECT_EQ(error_of(bytes) == "none", bytes.size() == whole) << bytes.size();
  }
}

TEST(ReferenceFile, WhatIsNoReferenceIsCalledSo) {
  EXPECT_THAT(error_of(with(small(), 0, 'G')), HasSubstr("llama-perplexity"));
  EXPECT_THAT(error_of(std::vector<std::byte>(100)), HasSubstr("this is no reference"));
}

TEST(ReferenceFile, AbsurdCountsAreRefusedByNameOrBySize) {
  constexpr auto k_most = std::numeric_limits<std::uint32_t>::max();
  EXPECT_THAT(error_of(with(small(), 8, k_most)), HasSubstr("4294967295 tokens in a window, expected 4 to "));
  EXPECT_THAT(error_of(with(small(), 8, 3u)), HasSubstr("3 tokens in a window"));
  EXPECT_THAT(error_of(with(small(), 12, 0u)), HasSubstr("0 tokens in the vocabulary"));
  EXPECT_THAT(error_of(with(small(), 12, k_most)), HasSubstr("4294967295 tokens in the vocabulary"));
  EXPECT_THAT(error_of(with(small(), 16, 0u)), HasSubstr("0 windows"));
  EXPECT_THAT(error_of(with(small(), 16, k_most)), HasSubstr("4294967295 windows"));
  constexpr std::uint32_t k_limit = 16u << 20;
  const auto all = with(with(with(small(), 8, k_limit), 12, k_limit), 16, k_limit);
  EXPECT_THAT(error_of(all), HasSubstr("expected more than 2^64"));
  for (const std::size_t offset : {8, 12, 16})
    EXPECT_THAT(error_of(with(small(), offset, k_limit)), HasSubstr("not whole")) << offset;
}

TEST(ReferenceFile, ATokenOutsideTheVocabularyIsNamedWithItsPlace) {
  EXPECT_THAT(error_of(with(small(), 20 + 4 * 3, 5)),
              HasSubstr("token 3 of the reference, at byte 32, is 5, expected 0 to 4"));
  EXPECT_THAT(error_of(with(small(), 20, -1)), HasSubstr("is -1"));
}

TEST(ReferenceFile, ARowThatIsNoDistributionIsRefusedWithItsPlace) {
  const std::size_t first_row = 20 + 16 * sizeof(TokenId);
  constexpr float k_nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float k_infinite = std::numeric_limits<float>::infinity();
  for (const std::size_t offset : {first_row, first_row + sizeof(float)}) {
    for (const float value : {k_nan, k_infinite, -k_infinite, 1.0f}) {
      EXPECT_THAT(error_of(with(small(), offset, value), true),
                  HasSubstr("behind token 4 of window 0, at byte " + std::to_string(first_row)))
          << offset << ", " << value;
    }
  }
}

}  // namespace
}  // namespace sluice::engine
