// Goal: every file of the malformed collection gets its verdict from the parser, and none crashes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::gguf {
namespace {

using ::testing::HasSubstr;

/// Semantic faults lie in what the numbers mean to a tokenizer or a model, which this module does not know.
bool is_semantic(const std::string& file_name) {
  return file_name.starts_with("sem_");
}

TEST(Malformed, EveryFileGetsItsVerdict) {
  SLUICE_NEEDS_DATA(folder, "malformed");
  const nlohmann::json index = nlohmann::json::parse(test::read_text(folder / "INDEX.json"));
  std::size_t n_judged = 0;
  for (const nlohmann::json& entry : index) {
    const std::string file_name = entry.at("file");
    const std::string verdict = entry.at("expect");
    SCOPED_TRACE(file_name + ": " + entry.at("why").get<std::string>());
    test::MemorySource source(file_name, test::read_bytes(folder / file_name));
    std::string message;
    try {
      const ModelFile model = parse_file(source);
      for (const Metadata::Entry& item : model.metadata.entries())
        EXPECT_FALSE(describe_value(item.value).empty());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_file);
      message = error.what();
      EXPECT_THAT(message, HasSubstr(file_name));
    }
    if (is_semantic(file_name)) continue;
    if (verdict == "reject") {
      EXPECT_FALSE(message.empty());
      ++n_judged;
    } else if (verdict == "parse-ok") {
      EXPECT_EQ(message, "");
      ++n_judged;
    }
  }
  EXPECT_GE(n_judged, 40u);
}

TEST(Malformed, RejectionsOfTheHeaderNameAnOffset) {
  SLUICE_NEEDS_DATA(folder, "malformed");
  for (const char* file_name :
       {"str_trunc.gguf", "n_kv_max.gguf", "type_huge.gguf", "off_unaligned.gguf", "dup_key.gguf",
        "dup_tensor.gguf", "arr_nested_5000.gguf", "empty.gguf", "big_endian_v3.gguf"}) {
    test::MemorySource source(file_name, test::read_bytes(folder / file_name));
    try {
      parse_file(source);
      ADD_FAILURE() << file_name << " was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string(file_name) + ": byte "));
    }
  }
}

TEST(Malformed, LegacyAndSwappedFilesAreCalledByName) {
  SLUICE_NEEDS_DATA(folder, "malformed");
  const auto error_of = [&folder](const char* file_name) {
    return test::parse_error(test::read_bytes(folder / file_name));
  };
  EXPECT_THAT(error_of("ggml_legacy_magic.gguf"), HasSubstr("legacy ggml"));
  EXPECT_THAT(error_of("big_endian_v3.gguf"), HasSubstr("big-endian"));
  EXPECT_THAT(error_of("v1_empty_string.gguf"), HasSubstr("version 1"));
  EXPECT_THAT(error_of("version_4.gguf"), HasSubstr("newer"));
  EXPECT_THAT(error_of("no_data.gguf"), HasSubstr("bytes are missing"));
}

}  // namespace
}  // namespace sluice::gguf
