// Goal: a file that is no GGUF file is called what it is, with a way out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/tiny_gguf.hpp"

namespace sluice::gguf {
namespace {

using test::RawBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of_text(std::string_view text) {
  return test::parse_error(RawBytes().text(text).bytes());
}

TEST(ForeignFile, EveryKindIsNamedWithTheFile) {
  using namespace std::string_view_literals;
  const std::vector<std::pair<std::string_view, std::string>> kinds{
      {""sv, "empty"},
      {"G"sv, "truncated"},
      {"GGU"sv, "truncated"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4683073536\n"sv,
       "Git LFS pointer to a file of "
       "4683073536 bytes"},
      {"version https://git-lfs.github.com/spec/v1\nsize "sv, "git lfs pull"},
      {"<!DOCTYPE html><html><head>"sv, "HTML page"},
      {"\r\n  <HTML lang=en>"sv, "HTML page"},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>"sv, "AccessDenied"},
      {"{\"error\":\"Invalid credentials\"}"sv, "Invalid credentials"},
      {"\xef\xbb\xbf [1]"sv, "JSON"},
      {"PK\x03\x04rest"sv, "ZIP"},
      {"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}, \"weights\": 1}                                        "sv,
       "safetensors"},
      {"\x80\x02}q\0"sv, "pickle"},
      {"\x1f\x8b\x08\0\0"sv, "gzip"},
      {"\x28\xb5\x2f\xfd\0"sv, "zstd"},
      {"lmgg\1\0\0\0"sv, "legacy ggml"},
      {"tjgg\3\0\0\0"sv, "legacy ggml"},
      {"fmgg\1\0\0\0"sv, "legacy ggml"},
      {"GGML\1\0\0\0"sv, "legacy ggml"},
      {"ggjt\1\0\0\0"sv, "legacy ggml"},
      {"FUGG\0\0\0\3"sv, "big-endian"},
      {"\0\0\0\0\0\0\0\0"sv, "zero"},
      {"MZ\x90\0"sv, "expected the magic"},
      {"x"sv, "expected the magic"},
  };
  for (const auto& [text, expected] : kinds) {
    EXPECT_THAT(error_of_text(text), AllOf(HasSubstr("tiny.gguf"), HasSubstr("byte 0"), HasSubstr(expected)));
  }
}

TEST(ForeignFile, ControlCharactersOfTheFileDoNotReachTheMessage) {
  for (const char* text : {"\x1b]0;x", "{\"\x1b[2J\"}", "<html>\x07"}) {
    const std::string message = error_of_text(text);
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << text;
    EXPECT_EQ(message.find('\x07'), std::string::npos) << text;
    EXPECT_FALSE(message.empty());
  }
}

TEST(ForeignFile, VersionsThatCannotBeReadAreToldApart) {
  const auto with_version = [](std::uint32_t version) {
    return test::parse_error(RawBytes().header(0, 0, version).bytes());
  };
  EXPECT_THAT(with_version(0),
              AllOf(HasSubstr("byte 4"), HasSubstr("0 is no GGUF version"), HasSubstr("damaged")));
  EXPECT_THAT(with_version(1), AllOf(HasSubstr("byte 4"), HasSubstr("version 1"), HasSubstr("Convert")));
  EXPECT_EQ(with_version(2), "");
  EXPECT_EQ(with_version(3), "");
  EXPECT_THAT(with_version(4), AllOf(HasSubstr("byte 4"), HasSubstr("newer"), HasSubstr("update")));
  EXPECT_THAT(with_version(0xdeadbeef), AllOf(HasSubstr("byte 4"), HasSubstr("damaged")));
  EXPECT_THAT(with_version(0x03000000), AllOf(HasSubstr("byte 4"), HasSubstr("big-endian")));
  EXPECT_THAT(with_version(0x02000000), HasSubstr("big-endian"));
}

}  // namespace
}  // namespace sluice::gguf
