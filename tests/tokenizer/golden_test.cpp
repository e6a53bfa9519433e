// Token ids of other programs: the vocabularies and vectors lie in the optional test data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/error.hpp"
#include "support/test_data.hpp"
#include "tokenizer/vocab_support.hpp"

namespace sluice::tokenizer {
namespace {

std::vector<TokenId> parse_ids(const std::string& line) {
  std::istringstream stream(line);
  std::vector<TokenId> ids;
  for (TokenId id = 0; stream >> id;) ids.push_back(id);
  return ids;
}

std::vector<std::string> split_by(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = text.find(separator, begin)) != std::string::npos;) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

class GoldenVocab : public testing::TestWithParam<const char*> {};

TEST_P(GoldenVocab, EncodesEveryStringLikeTheReference) {
  const std::string name = std::string("vocab/ggml-vocab-") + GetParam() + ".gguf";
  SLUICE_NEEDS_DATA(path, name);
  SLUICE_NEEDS_DATA(inputs_path, name + ".inp");
  SLUICE_NEEDS_DATA(outputs_path, name + ".out");
  const auto inputs = split_by(test::read_text(inputs_path), "\n__ggml_vocab_test__\n");
  const auto outputs = split_by(test::read_text(outputs_path), "\n");
  ASSERT_EQ(inputs.size(), outputs.size());
  ASSERT_GT(inputs.size(), 40u);
  const auto tokenizer = test::load_tokenizer(path);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(tokenizer->encode(inputs[i], {.add_special = false}), parse_ids(outputs[i]))
        << '"' << inputs[i] << '"';
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(inputs[i])), inputs[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenVocab,
                         testing::Values("deepseek-coder", "falcon", "gpt-2", "llama-spm", "phi-3"),
                         [](const auto& vocab) {
                           std::string name = vocab.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(GoldenQwen3, EncodesEveryStringLikeTheModelsOwnTokenizer) {
  SLUICE_NEEDS_DATA(path, "vocab/ggml-vocab-qwen3.gguf");
  SLUICE_NEEDS_DATA(golden_path, "vocab/ggml-vocab-qwen3.golden_ids.json");
  const auto tokenizer = test::load_tokenizer(path);
  const auto golden = nlohmann::json::parse(test::read_text(golden_path));
  ASSERT_GT(golden.size(), 40u);
  for (const auto& entry : golden) {
    const auto text = entry.at("text").get<std::string>();
    EXPECT_EQ(tokenizer->encode(text, {.parse_special = true}), entry.at("ids").get<std::vector<TokenId>>())
        << '"' << text << '"';
  }
}

TEST(GoldenStories, PromptsEncodeWithBosLikeTheReference) {
  SLUICE_NEEDS_DATA(path, "models/stories260K-f32.gguf");
  const auto tokenizer = test::load_tokenizer(path);
  for (const char* index : {"0", "1", "2"}) {
    SLUICE_NEEDS_DATA(prompt_path, std::string("models/stories260K_golden/golden_prompt_") + index + ".txt");
    SLUICE_NEEDS_DATA(ids_path, std::string("models/stories260K_golden/golden_ids_") + index + ".txt");
    const std::string line = split_by(test::read_text(ids_path), "\n").at(0);
    const std::string label = "prompt_ids:";
    ASSERT_TRUE(line.starts_with(label)) << line;
    EXPECT_EQ(tokenizer->encode(test::read_text(prompt_path)), parse_ids(line.substr(label.size())));
  }
}

TEST(GoldenQwen3, EndsOfGenerationAreTheEndsOfChatTextAndInfilling) {
  SLUICE_NEEDS_DATA(path, "vocab/ggml-vocab-qwen3.gguf");
  const auto tokenizer = test::load_tokenizer(path);
  EXPECT_THAT(tokenizer->end_of_generation_tokens(),
              testing::ElementsAre(151643, 151645, 151662, 151663, 151664));
  EXPECT_EQ(tokenizer->eot(), 151645);
}

TEST(MalformedFiles, InconsistentVocabulariesAreRefusedAndOddOnesSurvive) {
  for (const char* name : {"scores_short", "types_short", "byte_token_neg"}) {
    SLUICE_NEEDS_DATA(path, std::string("malformed/sem_") + name + ".gguf");
    try {
      test::load_tokenizer(path);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_file) << error.what();
    }
  }
  for (const char* name : {"eos_oob", "bos_oob"}) {
    SLUICE_NEEDS_DATA(path, std::string("malformed/sem_") + name + ".gguf");
    EXPECT_GT(test::load_tokenizer(path)->vocab_size(), 0u);
  }
  SLUICE_NEEDS_DATA(path, "malformed/sem_merges_dup_cycle.gguf");
  EXPECT_TRUE(test::load_tokenizer(path)->encode("a b").empty());
}

}  // namespace
}  // namespace sluice::tokenizer
