// Goal: a chat is written in the form that the file's vocabulary or template names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "support/edited_model.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

/// The small built-in model with some of its tokens spelled otherwise, and another template.
void write_model(const std::filesystem::path& path, const std::map<std::string, std::string>& spellings,
                 const std::string& chat_template) {
  EditedModel model(builtin_model("tales-draft-3.7m-Q8_0.gguf"));
  gguf::Value tokens = *model.metadata.find("tokenizer.ggml.tokens");
  auto& strings = std::get<gguf::StringArray>(std::get<gguf::Array>(tokens.data).data);
  gguf::StringArray renamed;
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const auto found = spellings.find(std::string(strings[i]));
    renamed.push_back(found == spellings.end() ? strings[i] : std::string_view(found->second));
  }
  strings = renamed;
  model.metadata.set("tokenizer.ggml.tokens", std::move(tokens));
  model.metadata.set("tokenizer.chat_template", {gguf::ValueType::string, chat_template});
  model.write(path);
}

/// A greedy answer; what of it depends on the prompt's tokens.
nlohmann::json answer(const std::filesystem::path& model, const Words& more, std::string* errors = nullptr) {
  Words words{"run", model.string(), "--temp", "0", "-n", "8", "--ignore-eos", "--heat", "off", "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome outcome = sluice(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  if (errors != nullptr) *errors = outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  return {{"tokens", json["tokens"]}, {"n_prompt_tokens", json["n_prompt_tokens"]}};
}

const std::map<std::string, std::string> k_llama3{{"<|endoftext|>", "<|end_header_id|>"},
                                                  {"<|im_start|>", "<|start_header_id|>"},
                                                  {"<|im_end|>", "<|eot_id|>"}};
const std::map<std::string, std::string> k_no_marks{{"<|im_start|>", "<mark1>"}, {"<|im_end|>", "</s>"}};

TEST(ChatForm, OfLlama3IsKnownByItsTokens) {
  const TempDir folder;
  write_model(folder / "m.gguf", k_llama3, "");
  std::string errors;
  const auto chat = answer(folder / "m.gguf", {"--system", "Be kind.", "-p", "Hi"}, &errors);
  EXPECT_EQ(chat,
            answer(folder / "m.gguf", {"-p",
                                       "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
                                       "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                                       "<|start_header_id|>assistant<|end_header_id|>\n\n"}));
  EXPECT_EQ(errors, "");
}

TEST(ChatForm, OfMistralAndLlama2IsKnownByTheTemplate) {
  const TempDir folder;
  write_model(folder / "mistral.gguf", k_no_marks, "{{ '[INST] ' + message['content'] + ' [/INST]' }}");
  EXPECT_EQ(answer(folder / "mistral.gguf", {"--system", "Be kind.", "-p", "Hi"}),
            answer(folder / "mistral.gguf", {"-p", "[INST] Be kind.\n\nHi [/INST]"}));
  write_model(folder / "llama2.gguf", k_no_marks, "[INST] <<SYS>>");
  EXPECT_EQ(answer(folder / "llama2.gguf", {"--system", "Be kind.", "-p", "Hi"}),
            answer(folder / "llama2.gguf", {"-p", "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST]"}));
}

TEST(ChatForm, WithoutOneIsPlainAndTheNoteSaysWhatFollowsAndTheCure) {
  const TempDir folder;
  write_model(folder / "m.gguf", k_no_marks, "");
  std::string errors;
  EXPECT_EQ(answer(folder / "m.gguf", {"--system", "Be kind.", "-p", "Hi"}, &errors),
            answer(folder / "m.gguf", {"-p", "Be kind.\nUser: Hi\nAssistant:"}));
  EXPECT_THAT(errors, HasSubstr("answers may be poor"));
  EXPECT_THAT(errors, HasSubstr("without --chat"));
}

TEST(ChatForm, AMessageCannotHoldItsMarks) {
  const TempDir folder;
  write_model(folder / "m.gguf", k_llama3, "");
  const auto n_tokens = [&](const std::string& text) {
    return answer(folder / "m.gguf", {"--chat", "-p", text})["n_prompt_tokens"].get<int>();
  };
  EXPECT_GT(n_tokens("a<|eot_id|>"), n_tokens("a") + 1);
}

}  // namespace
}  // namespace sluice::test
