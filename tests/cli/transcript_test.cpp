// Goal: the tokens of a chat are those that its form asks for, over several turns.
#include "cli/transcript.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sluice/model.hpp"
#include "support/edited_model.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice::cli {
namespace {

using test::EditedModel;
using test::TempDir;
using Tokens = std::vector<TokenId>;

/// The small built-in model with `<s>` and `</s>` instead of its marks; it begins texts with `<s>`.
Tokenizer tokenizer_with_bos(bool has_bos) {
  EditedModel model(test::builtin_model("tales-draft-3.7m-Q8_0.gguf"));
  const std::map<std::string, std::string> spellings{{"<|im_start|>", "<s>"}, {"<|im_end|>", "</s>"}};
  gguf::Value tokens = *model.metadata.find("tokenizer.ggml.tokens");
  auto& strings = std::get<gguf::StringArray>(std::get<gguf::Array>(tokens.data).data);
  gguf::StringArray renamed;
  std::uint64_t bos = 0;
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const auto found = spellings.find(std::string(strings[i]));
    renamed.push_back(found == spellings.end() ? strings[i] : std::string_view(found->second));
    if (strings[i] == "<|im_start|>") bos = i;
  }
  strings = renamed;
  model.metadata.set("tokenizer.ggml.tokens", std::move(tokens));
  if (has_bos) {
    model.metadata.set("tokenizer.ggml.bos_token_id", {gguf::ValueType::u32, bos});
    model.metadata.set("tokenizer.ggml.add_bos_token", {gguf::ValueType::boolean, true});
  }
  const TempDir folder;
  model.write(folder / "m.gguf");
  return Model::open(folder / "m.gguf").tokenizer();
}

/// Two messages and the answer between them. `system` stands in the first.
Tokens two_turns(const Tokenizer& tokenizer, const char* chat_template, std::size_t* n_first = nullptr) {
  Transcript transcript(tokenizer, chat_template, "Be kind.");
  transcript.add_message("Hi");
  if (n_first != nullptr) *n_first = transcript.tokens().size();
  Generation answer;
  answer.tokens = tokenizer.encode(" Hello.", /*add_special=*/false);
  answer.reason = StopReason::end_token;
  transcript.add_answer(answer);
  transcript.add_message("And?");
  return {transcript.tokens().begin(), transcript.tokens().end()};
}

/// Tokens of a text in which marks are spelled out; BOS as the vocabulary asks.
Tokens spelled(const Tokenizer& tokenizer, const char* text) {
  return tokenizer.encode(text, /*add_special=*/true, /*parse_special=*/true);
}

constexpr const char* k_llama2 = "[INST] <<SYS>>";
constexpr const char* k_mistral = "{{ '[INST] ' + message['content'] + ' [/INST]' }}";

TEST(Transcript, OfLlama2EndsAnswersAndBeginsTurns) {
  const Tokenizer tokenizer = tokenizer_with_bos(true);
  ASSERT_GE(tokenizer.bos(), 0);
  EXPECT_EQ(two_turns(tokenizer, k_llama2),
            spelled(tokenizer,
                    "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Hello.</s><s>[INST] And? [/INST]"));
}

TEST(Transcript, OfMistralEndsAnswersAndBeginsOnce) {
  const Tokenizer tokenizer = tokenizer_with_bos(true);
  EXPECT_EQ(two_turns(tokenizer, k_mistral),
            spelled(tokenizer, "[INST] Be kind.\n\nHi [/INST] Hello.</s>[INST] And? [/INST]"));
}

TEST(Transcript, WithoutBosLlama2IsAsMistralBehindTheFirstMessage) {
  const Tokenizer tokenizer = tokenizer_with_bos(false);
  ASSERT_LT(tokenizer.bos(), 0);
  std::size_t n_llama2 = 0, n_mistral = 0;
  const Tokens llama2 = two_turns(tokenizer, k_llama2, &n_llama2),
               mistral = two_turns(tokenizer, k_mistral, &n_mistral);
  EXPECT_EQ(Tokens(llama2.begin() + static_cast<std::ptrdiff_t>(n_llama2), llama2.end()),
            Tokens(mistral.begin() + static_cast<std::ptrdiff_t>(n_mistral), mistral.end()));
}

TEST(Transcript, AMessageTakenBackLeavesNothing) {
  const Tokenizer tokenizer = tokenizer_with_bos(true);
  Transcript transcript(tokenizer, k_llama2, std::nullopt);
  transcript.add_message("Hi");
  const Tokens first(transcript.tokens().begin(), transcript.tokens().end());
  transcript.take_back_message(0);
  transcript.add_message("Hi");
  EXPECT_EQ(Tokens(transcript.tokens().begin(), transcript.tokens().end()), first);
}

}  // namespace
}  // namespace sluice::cli
