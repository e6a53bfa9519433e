#include "sluice/generate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "engine/model/model_impl.hpp"
#include "support/edited_model.hpp"
#include "support/failing_backend.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

GenerateOptions greedy(std::uint32_t max_tokens) {
  GenerateOptions options;
  options.sampler.temperature = 0.0f;
  options.max_tokens = max_tokens;
  return options;
}

class Generate : public ::testing::Test {
 protected:
  static Model open(std::uint32_t n_ctx) {
    OpenOptions options;
    options.n_ctx = n_ctx;
    options.n_threads = 1;
    options.max_sequences = 2;
    return Model::open(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"), options);
  }

  Model model = open(128);
  std::vector<TokenId> prompt = model.tokenizer().encode("Once upon a time there was a little");

  Generation run(const GenerateOptions& options, const std::function<bool(std::string_view)>& on_text = {}) {
    Sequence sequence = model.new_sequence();
    return generate(model, sequence, prompt, options, on_text);
  }
};

TEST_F(Generate, TheTextIsWhatTheCallbackGotAndWhatTheTokensSay) {
  std::string heard;
  const Generation answer = run(greedy(30), [&heard](std::string_view piece) {
    EXPECT_FALSE(piece.empty());
    heard += piece;
    return true;
  });
  EXPECT_EQ(answer.reason, StopReason::token_limit);
  EXPECT_EQ(answer.tokens.size(), 30u);
  EXPECT_EQ(answer.n_prompt_tokens, prompt.size());
  EXPECT_EQ(answer.text, heard);
  EXPECT_EQ(answer.text, model.tokenizer().decode(answer.tokens));
}

TEST_F(Generate, GreedyTokensAreTheLikeliestOfEachStep) {
  const Generation answer = run(greedy(8));
  Sequence sequence = model.new_sequence();
  std::vector<TokenId> input = prompt;
  for (const TokenId expected : answer.tokens) {
    TokenId best = -1;
    const StepItem item{&sequence, input, LogitsWanted::last};
    model.step({&item, 1}, [&best](std::size_t, std::size_t, std::span<const float> logits) {
      best = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    });
    ASSERT_EQ(best, expected);
    input.assign(1, best);
  }
}

TEST_F(Generate, TheSequenceHoldsPromptAndAnswerButTheLastToken) {
  Sequence sequence = model.new_sequence();
  const Generation answer = generate(model, sequence, prompt, greedy(10));
  EXPECT_EQ(sequence.n_tokens(), prompt.size() + 9);
  // Fed back, it continues exactly as one longer answer would have.
  const Generation rest = generate(model, sequence, std::span(answer.tokens).last(1), greedy(10));
  const Generation whole = run(greedy(20));
  EXPECT_EQ(answer.text + rest.text, whole.text);
}

TEST_F(Generate, TheSameSeedRepeatsTheAnswer) {
  GenerateOptions options = greedy(30);
  options.sampler.temperature = 1.5f;
  options.sampler.seed = 21;
  const Generation first = run(options);
  EXPECT_EQ(run(options).tokens, first.tokens);
  options.sampler.seed = 22;
  EXPECT_NE(run(options).tokens, first.tokens);
}

TEST_F(Generate, AStopStringThatSpansTokensEndsTheTextBeforeIt) {
  const Generation whole = run(greedy(30));
  // Takes the end of one token and the start of the next.
  const std::string before = model.tokenizer().decode({whole.tokens.begin(), whole.tokens.begin() + 15});
  const std::size_t at = before.size() - 1;
  GenerateOptions options = greedy(30);
  options.stop = {"never in a story", whole.text.substr(at, 2)};
  std::string heard;
  const Generation cut = run(options, [&heard](std::string_view piece) {
    heard += piece;
    return true;
  });
  EXPECT_EQ(cut.reason, StopReason::stop_string);
  EXPECT_EQ(cut.stop_string, options.stop[1]);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(options.stop[1])));
  EXPECT_EQ(cut.text, heard);
  EXPECT_LE(cut.tokens.size(), 16u);
}

TEST_F(Generate, AnUnfinishedStopStringIsGivenOutAtTheEnd) {
  const Generation whole = run(greedy(12));
  GenerateOptions options = greedy(12);
  options.stop = {whole.text.substr(whole.text.size() - 4) + "\x01"};
  const Generation same = run(options);
  EXPECT_EQ(same.reason, StopReason::token_limit);
  EXPECT_EQ(same.text, whole.text);
}

TEST_F(Generate, AnEndTokenEndsTheAnswerUnlessItIsIgnored) {
  // In the chat form the model closes its turn after a short story.
  Model large = open(2048);
  const std::vector<TokenId> chat = large.tokenizer().encode(
      "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n", true, true);
  Sequence sequence = large.new_sequence();
  GenerateOptions options = greedy(1500);
  const Generation answer = generate(large, sequence, chat, options);
  ASSERT_EQ(answer.reason, StopReason::end_token);
  for (const TokenId token : answer.tokens) EXPECT_FALSE(large.tokenizer().is_end_of_generation(token));
  options.ignore_eos = true;
  options.max_tokens = static_cast<std::uint32_t>(answer.tokens.size()) + 3;
  Sequence again = large.new_sequence();
  const Generation longer = generate(large, again, chat, options);
  EXPECT_EQ(longer.reason, StopReason::token_limit);
  EXPECT_EQ(longer.tokens.size(), options.max_tokens);
  EXPECT_TRUE(large.tokenizer().is_end_of_generation(longer.tokens[answer.tokens.size()]));
}

TEST_F(Generate, AFullContextEndsTheAnswer) {
  GenerateOptions options = greedy(0);
  options.ignore_eos = true;
  Sequence sequence = model.new_sequence();
  const Generation answer = generate(model, sequence, prompt, options);
  EXPECT_EQ(answer.reason, StopReason::context_full);
  EXPECT_EQ(sequence.n_free(), 0u);
  // The last token was drawn from the last position's logits and had no room itself.
  EXPECT_EQ(answer.tokens.size(), 128 - prompt.size() + 1);
}

TEST_F(Generate, APromptThatDoesNotFitIsRefusedBeforeAnythingIsComputed) {
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> large(129, prompt[0]);
  try {
    generate(model, sequence, large, greedy(1));
    ADD_FAILURE() << "accepted a prompt larger than the context";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::context_full);
  }
  EXPECT_EQ(sequence.n_tokens(), 0u);
  EXPECT_EQ(model.stats().n_prefill_tokens, 0u);
}

TEST_F(Generate, BadRequestsAreRefused) {
  Sequence sequence = model.new_sequence();
  const auto code = [&](std::span<const TokenId> tokens, const GenerateOptions& options) {
    try {
      generate(model, sequence, tokens, options);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code({}, greedy(1)), ErrorCode::invalid_argument);
  GenerateOptions options = greedy(1);
  options.sampler.top_p = 2.0f;
  EXPECT_EQ(code(prompt, options), ErrorCode::invalid_argument);
  options = greedy(1);
  options.stop = {""};
  EXPECT_EQ(code(prompt, options), ErrorCode::invalid_argument);
  EXPECT_EQ(sequence.n_tokens(), 0u);
}

TEST_F(Generate, TheCallbackCanEndTheAnswer) {
  int n_calls = 0;
  const Generation answer = run(greedy(30), [&n_calls](std::string_view) { return ++n_calls < 3; });
  EXPECT_EQ(answer.reason, StopReason::cancelled);
  EXPECT_EQ(n_calls, 3);
  EXPECT_LT(answer.tokens.size(), 30u);
}

TEST_F(Generate, ARaisedCancelFlagIsAReasonNotAnError) {
  std::atomic<bool> cancel{true};
  model.set_cancel_flag(&cancel);
  Sequence sequence = model.new_sequence();
  const Generation nothing = generate(model, sequence, prompt, greedy(5));
  EXPECT_EQ(nothing.reason, StopReason::cancelled);
  EXPECT_TRUE(nothing.tokens.empty());
  EXPECT_EQ(sequence.n_tokens(), 0u);

  cancel = false;
  const Generation some = generate(model, sequence, prompt, greedy(30), [&cancel](std::string_view) {
    cancel = true;
    return true;
  });
  EXPECT_EQ(some.reason, StopReason::cancelled);
  EXPECT_FALSE(some.text.empty());
  // Nothing but the token whose step was cancelled is missing from the sequence.
  EXPECT_EQ(sequence.n_tokens(), prompt.size() + some.tokens.size() - 1);
  model.set_cancel_flag(nullptr);
}

TEST_F(Generate, AKeptSamplerSeesEarlierTurnsAsOneRunOfTheSameTokensWould) {
  GenerateOptions options = greedy(20);
  options.sampler.repeat_penalty = 1.5f;
  options.sampler.repeat_window = 40;
  Sampler sampler(options.sampler);
  options.kept_sampler = &sampler;
  Sequence sequence = model.new_sequence();
  const Generation first = generate(model, sequence, prompt, options);
  const std::vector<TokenId> more = model.tokenizer().encode(" Then the little", false);
  std::vector<TokenId> history = prompt;
  history.insert(history.end(), first.tokens.begin(), first.tokens.end());
  history.insert(history.end(), more.begin(), more.end());
  sampler.forget();
  for (const TokenId token : std::span(history).first(sequence.n_tokens())) sampler.accept(token);
  const Generation second =
      generate(model, sequence, std::span(history).subspan(sequence.n_tokens()), options);

  options.kept_sampler = nullptr;
  {
    Sequence other = model.new_sequence();
    EXPECT_EQ(generate(model, other, history, options).tokens, second.tokens);
  }
  // Without the earlier turn in its window it answers otherwise, or this test would show nothing.
  Sequence third = model.new_sequence();
  const StepItem item{&third, std::span(history).first(sequence.n_tokens() - second.tokens.size()),
                      LogitsWanted::none};
  model.step({&item, 1});
  EXPECT_NE(generate(model, third, std::span(history).subspan(third.n_tokens()), options).tokens,
            second.tokens);
}

TEST_F(Generate, AKeptSamplerGoesOnWithItsRandomNumbers) {
  GenerateOptions options = greedy(30);
  options.sampler.temperature = 0.8f;
  options.sampler.seed = 9;
  const auto answers = [&] {
    Sampler sampler(options.sampler);
    options.kept_sampler = &sampler;
    std::vector<std::vector<TokenId>> all;
    for (int i = 0; i < 2; ++i) all.push_back(run(options).tokens);
    return all;
  };
  const auto session = answers();
  EXPECT_NE(session[0], session[1]);
  EXPECT_EQ(answers(), session);
  options.kept_sampler = nullptr;
  EXPECT_EQ(run(options).tokens, session[0]);
}

TEST(GenerateFailure, KeepsTheAnswerSoFar) {
  const auto path = test::builtin_model("tales-29m-moe-Q4_K_M.gguf");
  OpenOptions options;
  options.n_ctx = 128;
  options.n_threads = 1;
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  const Plan plan = engine::open_model(path, options, hooks).plan();
  options.memory_bytes = plan.floor_bytes + (plan.resident_from_bytes - plan.floor_bytes) / 4;
  test::ReadFaults faults;
  hooks.wrap_backend = [&](std::unique_ptr<storage::Backend> inner) {
    return std::make_unique<test::FailingBackend>(std::move(inner), faults);
  };
  Model model = engine::open_model(path, options, hooks);
  const std::vector<TokenId> prompt = model.tokenizer().encode("Once upon a time there was a little");
  Sequence plain = model.new_sequence();
  const Generation whole = generate(model, plain, prompt, greedy(40));
  plain.rewind(0);
  std::string heard;
  try {
    generate(model, plain, prompt, greedy(40), [&](std::string_view piece) {
      heard += piece;
      faults.is_armed = heard.size() > 20;
      return true;
    });
    ADD_FAILURE() << "no read failed";
  } catch (const GenerationError& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    const Generation& partial = error.partial();
    EXPECT_EQ(partial.reason, StopReason::failed);
    EXPECT_EQ(partial.n_prompt_tokens, prompt.size());
    EXPECT_GT(partial.text.size(), 20u);
    EXPECT_EQ(partial.text, heard);
    EXPECT_EQ(partial.text, model.tokenizer().decode(partial.tokens));
    EXPECT_TRUE(whole.text.starts_with(partial.text));
    EXPECT_LT(partial.tokens.size(), whole.tokens.size());
  }
  // The model is as good as before.
  faults.is_armed = false;
  plain.rewind(0);
  EXPECT_EQ(generate(model, plain, prompt, greedy(40)).text, whole.text);
}

TEST_F(Generate, SpecialShowsControlTokens) {
  GenerateOptions options = greedy(100);
  options.ignore_eos = true;
  const Generation plain = run(options);
  options.special = true;
  const Generation shown = run(options);
  EXPECT_EQ(plain.tokens, shown.tokens);
  EXPECT_EQ(shown.text, model.tokenizer().decode(shown.tokens, true));
}

TEST_F(Generate, WhatTheFileForbidsIsNeverDrawn) {
  const Generation free = run(greedy(10));
  std::vector<std::int32_t> forbidden(free.tokens.begin(), free.tokens.end());
  test::EditedModel edited(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"));
  edited.metadata.set("tokenizer.ggml.suppress_tokens",
                      {gguf::ValueType::array, gguf::Array{gguf::ValueType::i32, forbidden}});
  const test::TempDir folder;
  edited.write(folder / "forbidden.gguf");
  OpenOptions options;
  options.n_ctx = 128;
  Model other = Model::open(folder / "forbidden.gguf", options);
  Sequence sequence = other.new_sequence();
  const Generation answer = generate(other, sequence, prompt, greedy(30));
  EXPECT_EQ(answer.tokens.size(), 30u);
  for (const TokenId token : answer.tokens)
    EXPECT_EQ(std::count(forbidden.begin(), forbidden.end(), token), 0) << token;
}

}  // namespace
}  // namespace sluice
