// Goal: speculation changes speed, never an answer. Method: the same request with and without guesses must
// give the same tokens, text, reason, sequence and counters, whatever the guesses are: from an oracle that
// knows the answer and errs where it is told to, from prompt lookup and from the built-in draft.
#include "sluice/speculate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "engine/speculate/speculator.hpp"
#include "sluice/generate.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

GenerateOptions greedy(std::uint32_t max_tokens) {
  GenerateOptions options;
  options.sampler.temperature = 0.0f;
  options.max_tokens = max_tokens;
  return options;
}

GenerateOptions sampled(std::uint32_t max_tokens, std::uint64_t seed, float temperature) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampler.seed = seed;
  options.sampler.temperature = temperature;
  options.sampler.repeat_penalty = 1.2f;
  return options;
}

SpeculateOptions ungated(std::uint32_t max_guesses = 8, bool lookup = true) {
  SpeculateOptions options;
  options.max_guesses = max_guesses;
  options.lookup = lookup;
  options.gate = false;
  return options;
}

const std::filesystem::path& draft_path() {
  static const std::filesystem::path k_path = test::builtin_model("tales-draft-3.7m-Q8_0.gguf");
  return k_path;
}

class Speculate : public ::testing::Test {
 protected:
  static OpenOptions open_options(std::uint32_t n_ctx) {
    OpenOptions options;
    options.n_ctx = n_ctx;
    options.n_threads = 1;
    options.max_sequences = 2;
    return options;
  }
  static Model open(std::uint32_t n_ctx) {
    return Model::open(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"), open_options(n_ctx));
  }

  Model model = open(256);
  Tokens prompt = model.tokenizer().encode("Once upon a time there was a little");

  /// All that a request leaves behind.
  struct Run {
    Generation answer;
    std::string heard;
    std::uint32_t n_sequence = 0;
    std::uint64_t n_decoded = 0, n_passes = 0, n_accepted = 0, n_guessed = 0;
  };

  static Run run(Model& of, Sequence& sequence, std::span<const TokenId> tokens, GenerateOptions options,
                 Speculator* speculator, const std::function<bool(std::string_view)>& on_text = {}) {
    const Stats before = of.stats();
    options.speculator = speculator;
    Run run;
    run.answer = generate(of, sequence, tokens, options, [&](std::string_view piece) {
      run.heard += piece;
      return !on_text || on_text(piece);
    });
    const Stats after = of.stats();
    run.n_sequence = sequence.n_tokens();
    run.n_decoded = after.n_decode_tokens - before.n_decode_tokens;
    run.n_passes = after.n_decode_passes - before.n_decode_passes;
    run.n_accepted =
        after.lookup.n_accepted + after.draft.n_accepted - before.lookup.n_accepted - before.draft.n_accepted;
    run.n_guessed =
        after.lookup.n_guessed + after.draft.n_guessed - before.lookup.n_guessed - before.draft.n_guessed;
    EXPECT_EQ(after.n_prefill_tokens - before.n_prefill_tokens, tokens.size());
    return run;
  }

  Run run(const GenerateOptions& options, Speculator* speculator,
          const std::function<bool(std::string_view)>& on_text = {}) {
    Sequence sequence = model.new_sequence();
    return run(model, sequence, prompt, options, speculator, on_text);
  }

  static void expect_same(const Run& with, const Run& without) {
    EXPECT_EQ(with.answer.tokens, without.answer.tokens);
    EXPECT_EQ(with.answer.text, without.answer.text);
    EXPECT_EQ(with.answer.reason, without.answer.reason);
    EXPECT_EQ(with.answer.stop_string, without.answer.stop_string);
    EXPECT_EQ(with.heard, without.heard);
    EXPECT_EQ(with.n_sequence, without.n_sequence);
    EXPECT_EQ(with.n_decoded, without.n_decoded);
  }

  /// Guesses from `truth`, a text that starts with the prompt, with a wrong guess at each multiple of `error`
  /// (0: none).
  Speculator oracle(Tokens truth, std::size_t error, std::uint32_t max_guesses = 8) const {
    return oracle(model, std::move(truth), error, max_guesses);
  }
  static Speculator oracle(const Model& of, Tokens truth, std::size_t error, std::uint32_t max_guesses) {
    Speculator speculator(of, ungated(max_guesses));
    speculator.impl().oracle = [truth = std::move(truth), error](std::span<const TokenId> text,
                                                                 std::uint32_t n_max) {
      Tokens guesses;
      for (std::size_t at = text.size(); guesses.size() < n_max; ++at) {
        TokenId token = at < truth.size() ? truth[at] : 0;
        if (error != 0 && at % error == 0) token = token == 5 ? 6 : 5;
        guesses.push_back(token);
      }
      return guesses;
    };
    return speculator;
  }

  Tokens truth(const GenerateOptions& options) {
    Tokens tokens = prompt;
    GenerateOptions longer = options;
    longer.max_tokens = 60;
    longer.stop.clear();
    longer.ignore_eos = true;
    const Tokens answer = run(longer, nullptr).answer.tokens;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    return tokens;
  }
};

TEST_F(Speculate, AnyPatternOfRightAndWrongGuessesGivesTheSameAnswer) {
  for (const GenerateOptions& options : {greedy(40), sampled(40, 7, 0.9f)}) {
    const Run plain = run(options, nullptr);
    const Tokens text = truth(options);
    for (const std::size_t error : {0, 1, 2, 3, 5, 9, 17}) {
      for (const std::uint32_t depth : {1, 2, 8, 40}) {
        Speculator speculator = oracle(text, error, depth);
        const Run with = run(options, &speculator);
        expect_same(with, plain);
        if (error == 1) {
          EXPECT_EQ(with.n_accepted, 0u);
        }
        if (error == 0) {
          // The first token comes from the prompt's pass, then each pass gives depth + 1.
          EXPECT_EQ(with.n_passes, (39 + depth) / (depth + 1)) << depth;
        }
      }
    }
  }
}

TEST_F(Speculate, AnswersOfEveryLengthEndInsideAcceptedGuessesAsOtherwise) {
  for (std::uint32_t n = 1; n <= 24; ++n) {
    const Run plain = run(greedy(n), nullptr);
    Speculator speculator = oracle(truth(greedy(n)), 0);
    expect_same(run(greedy(n), &speculator), plain);
  }
}

TEST_F(Speculate, StopStringsAnywhereInsideAcceptedGuessesEndTheAnswerAsOtherwise) {
  const Tokens text = truth(greedy(40));
  const std::string whole = run(greedy(40), nullptr).answer.text;
  for (std::size_t at = 0; at + 2 < whole.size(); at += 3) {
    GenerateOptions options = greedy(40);
    options.stop = {whole.substr(at, 2)};
    const Run plain = run(options, nullptr);
    EXPECT_EQ(plain.answer.reason, StopReason::stop_string);
    Speculator speculator = oracle(text, 0);
    expect_same(run(options, &speculator), plain);
  }
}

TEST_F(Speculate, AnEndTokenInsideAcceptedGuessesEndsTheAnswerAsOtherwise) {
  Model large = open(1024);
  const Tokens chat = large.tokenizer().encode(
      "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n", true, true);
  Sequence sequence = large.new_sequence();
  const Run plain = run(large, sequence, chat, greedy(900), nullptr);
  ASSERT_EQ(plain.answer.reason, StopReason::end_token);
  GenerateOptions ignoring = greedy(static_cast<std::uint32_t>(plain.answer.tokens.size()) + 6);
  ignoring.ignore_eos = true;
  sequence.rewind(0);
  const Run longer = run(large, sequence, chat, ignoring, nullptr);
  Tokens text = chat;
  text.insert(text.end(), longer.answer.tokens.begin(), longer.answer.tokens.end());
  for (const std::uint32_t depth : {3, 4, 5, 6, 7}) {
    Speculator speculator = oracle(large, text, 0, depth);
    sequence.rewind(0);
    expect_same(run(large, sequence, chat, greedy(900), &speculator), plain);
    sequence.rewind(0);
    expect_same(run(large, sequence, chat, ignoring, &speculator), longer);
  }
}

TEST_F(Speculate, AFullContextEndsTheAnswerAsOtherwise) {
  Model small = open(64);
  GenerateOptions options = greedy(0);
  options.ignore_eos = true;
  Sequence sequence = small.new_sequence();
  const Run plain = run(small, sequence, prompt, options, nullptr);
  ASSERT_EQ(plain.answer.reason, StopReason::context_full);
  Tokens text = prompt;
  text.insert(text.end(), plain.answer.tokens.begin(), plain.answer.tokens.end());
  for (const std::size_t error : {0, 4}) {
    for (const std::uint32_t depth : {1, 5, 6, 7, 64}) {
      Speculator speculator = oracle(small, text, error, depth);
      sequence.rewind(0);
      expect_same(run(small, sequence, prompt, options, &speculator), plain);
    }
  }
}

TEST_F(Speculate, ACallerThatStopsInsideAcceptedGuessesGetsWhatItWouldHaveGot) {
  const Tokens text = truth(greedy(40));
  for (int last_call = 1; last_call <= 12; ++last_call) {
    Speculator speculator = oracle(text, 0);
    const auto refusing = [&](Speculator* with) {
      int n_calls = 0;
      return run(greedy(40), with, [&](std::string_view) { return ++n_calls < last_call; });
    };
    expect_same(refusing(&speculator), refusing(nullptr));
    std::atomic<bool> cancel{false};
    model.set_cancel_flag(&cancel);
    const auto cancelling = [&](Speculator* with) {
      int n_calls = 0;
      cancel = false;
      return run(greedy(40), with, [&](std::string_view) {
        cancel = ++n_calls >= last_call;
        return true;
      });
    };
    const Run plain = cancelling(nullptr);
    EXPECT_EQ(plain.answer.reason, StopReason::cancelled);
    expect_same(cancelling(&speculator), plain);
    model.set_cancel_flag(nullptr);
  }
}

TEST_F(Speculate, SmallPassesLimitTheGuesses) {
  OpenOptions options = open_options(256);
  options.prefill_chunk = 4;
  Model narrow = Model::open(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"), options);
  Speculator speculator = oracle(narrow, truth(greedy(40)), 0, 16);
  Sequence sequence = narrow.new_sequence();
  const Run with = run(narrow, sequence, prompt, greedy(41), &speculator);
  EXPECT_EQ(with.n_passes, 10u);
  EXPECT_EQ(with.answer.tokens, run(greedy(41), nullptr).answer.tokens);
}

TEST_F(Speculate, ManySeedsDrawTheSameTokensWithEverySource) {
  Speculator lookup(model, ungated());
  Speculator both(model, open_draft(draft_path(), open_options(256)), ungated(3));
  Speculator draft(model, open_draft(draft_path(), open_options(256)), ungated(5, false));
  Speculator gated(model, open_draft(draft_path(), open_options(256)), {});
  std::uint64_t n_accepted = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const GenerateOptions options = sampled(40, seed, seed % 2 == 0 ? 0.7f : 1.3f);
    const Run plain = run(options, nullptr);
    for (Speculator* speculator : {&lookup, &both, &draft, &gated}) {
      const Run with = run(options, speculator);
      expect_same(with, plain);
      n_accepted += with.n_accepted;
    }
  }
  EXPECT_GT(n_accepted, 500u);
}

TEST_F(Speculate, RepetitiveTextIsGuessedByLookup) {
  // The model falls into repeating one word.
  std::string text;
  for (int i = 0; i < 15; ++i) text += "A b c d. ";
  prompt = model.tokenizer().encode(text);
  Speculator speculator(model, ungated(6));
  const Run plain = run(greedy(100), nullptr);
  const Run with = run(greedy(100), &speculator);
  expect_same(with, plain);
  EXPECT_EQ(plain.n_passes, 99u);
  EXPECT_LT(with.n_passes, 60u);
  const Stats stats = model.stats();
  EXPECT_GT(stats.lookup.n_accepted, 30u);
  EXPECT_EQ(stats.draft.n_guessed, 0u);
  EXPECT_GT(stats.n_speculative_passes, 0u);
}

TEST_F(Speculate, TheBuiltInDraftIsOftenRight) {
  Speculator speculator(model, open_draft(draft_path(), open_options(256)), ungated(4, false));
  const Run plain = run(greedy(100), nullptr);
  const Run with = run(greedy(100), &speculator);
  expect_same(with, plain);
  EXPECT_GT(with.n_decoded, with.n_passes * 13 / 10);
  EXPECT_GT(model.stats().draft_ns, 0u);
}

TEST_F(Speculate, TurnsOfAConversationContinueAsOtherwise) {
  Speculator lookup(model, ungated()), draft(model, open_draft(draft_path(), open_options(256)), ungated());
  std::vector<Run> plain;
  for (Speculator* speculator : {static_cast<Speculator*>(nullptr), &lookup, &draft}) {
    Sequence sequence = model.new_sequence();
    std::vector<Run> turns;
    Tokens next = prompt;
    for (const char* more : {" One day the fox said", ". But the bear", " and the little"}) {
      turns.push_back(run(model, sequence, next, sampled(20, 3, 0.8f), speculator));
      // The last token was drawn but not computed.
      next.assign(1, turns.back().answer.tokens.back());
      const Tokens words = model.tokenizer().encode(more, false);
      next.insert(next.end(), words.begin(), words.end());
    }
    // Anew, a part of it, and tokens that the speculator never saw.
    sequence.rewind(0);
    turns.push_back(run(model, sequence, prompt, greedy(20), speculator));
    sequence.rewind(5);
    turns.push_back(run(model, sequence, next, greedy(20), speculator));
    const StepItem unseen{&sequence, prompt, LogitsWanted::none};
    model.step({&unseen, 1});
    turns.push_back(run(model, sequence, next, greedy(20), speculator));
    sequence.rewind(10);
    turns.push_back(run(model, sequence, next, greedy(20), speculator));
    if (speculator != nullptr) speculator->forget();
    turns.push_back(run(model, sequence, next, greedy(20), speculator));
    if (speculator == nullptr) plain = turns;
    for (std::size_t i = 0; i < plain.size(); ++i) expect_same(turns[i], plain[i]);
  }
}

TEST_F(Speculate, ADraftWithASmallContextStartsAgain) {
  OpenOptions options = open_options(256);
  options.n_ctx = 64;
  Speculator speculator(model, open_draft(draft_path(), options), ungated(4, false));
  const Run plain = run(greedy(200), nullptr);
  const Run with = run(greedy(200), &speculator);
  expect_same(with, plain);
  EXPECT_GT(with.n_decoded, with.n_passes * 12 / 10);
}

TEST_F(Speculate, AnotherVocabularyIsRefusedWithTheDifference) {
  const test::TempDir folder;
  const auto path = test::write_tiny_model(folder.path(), {});
  try {
    const Speculator speculator(model, Model::open(path), {});
    ADD_FAILURE() << "accepted a draft with another vocabulary";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("vocabularies differ"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("tiny.gguf"));
  }
  Model tiny = Model::open(path);
  Sequence sequence = tiny.new_sequence();
  Speculator speculator(model, ungated());
  GenerateOptions options = greedy(4);
  options.speculator = &speculator;
  EXPECT_THROW(generate(tiny, sequence, Tokens{1, 2}, options), Error);
  EXPECT_EQ(sequence.n_tokens(), 0u);
}

TEST_F(Speculate, AnotherModelIsRefusedEvenOfTheSameFile) {
  Model other = open(64);
  Speculator speculator(model, ungated());
  GenerateOptions options = greedy(4);
  options.speculator = &speculator;
  Sequence sequence = other.new_sequence();
  EXPECT_THROW(generate(other, sequence, prompt, options), Error);
  EXPECT_EQ(sequence.n_tokens(), 0u);
  // A model that was moved is still the same.
  Model moved = std::move(model);
  Sequence own = moved.new_sequence();
  EXPECT_EQ(generate(moved, own, prompt, options).tokens.size(), 4u);
}

TEST_F(Speculate, AContextOfOneTokenHasNoRoomForGuesses) {
  OpenOptions options = open_options(1);
  Model draft = open_draft(draft_path(), options);
  options.draft = &draft;
  Model small = Model::open(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"), options);
  Speculator speculator(small, std::move(draft), ungated());
  Sequence sequence = small.new_sequence();
  GenerateOptions generating = greedy(0);
  const Generation plain = generate(small, sequence, Tokens(1, prompt[0]), generating);
  EXPECT_EQ(plain.reason, StopReason::context_full);
  sequence.rewind(0);
  generating.speculator = &speculator;
  EXPECT_EQ(generate(small, sequence, Tokens(1, prompt[0]), generating).tokens, plain.tokens);
  EXPECT_EQ(small.stats().draft.n_guessed, 0u);
}

TEST_F(Speculate, OptionsOutOfRangeAreRefused) {
  for (const std::uint32_t n : {0u, k_max_guesses + 1}) {
    EXPECT_THROW(Speculator(model, ungated(n)), Error);
  }
  Sequence sequence = model.new_sequence();
  const StepItem item{&sequence, prompt, LogitsWanted::last, static_cast<std::uint32_t>(prompt.size())};
  EXPECT_THROW(model.step({&item, 1}), Error);
}

TEST(SpeculateBudget, CoversTheDraft) {
  constexpr std::uint64_t k_budget = 1u << 30;  // A sanitizer makes the process itself large.
  OpenOptions options;
  options.memory_bytes = k_budget;
  options.n_ctx = 256;
  const std::filesystem::path path = test::builtin_model("tales-29m-moe-Q4_K_M.gguf");
  const auto bytes_of = [](const Plan& plan, const std::string& what) {
    std::uint64_t bytes = 0;
    for (const PlanItem& item : plan.items) bytes += item.what == what ? item.bytes : 0;
    return bytes;
  };
  const Plan alone = Model::open(path, options).plan();
  const Model draft = open_draft(draft_path(), options);
  EXPECT_EQ(draft.plan().n_ctx, 256u);
  options.draft = &draft;
  const Plan both = Model::open(path, options).plan();
  EXPECT_LE(both.planned_bytes, k_budget);
  const std::uint64_t weights = std::filesystem::file_size(draft_path());
  const std::uint64_t draft_bytes = bytes_of(both, "draft model");
  EXPECT_GE(draft_bytes, weights);
  EXPECT_LE(draft_bytes, 2 * weights);
  EXPECT_EQ(bytes_of(alone, "draft model"), 0u);
  const std::string process = "process and vocabulary";
  EXPECT_EQ(both.floor_bytes - bytes_of(both, process),
            alone.floor_bytes - bytes_of(alone, process) + draft_bytes);
#ifndef __SANITIZE_ADDRESS__
  // The draft is resident while the floor is made up, so it must not count twice. (AddressSanitizer keeps
  // freed memory, so there the process grows by more than the draft.)
  EXPECT_LT(bytes_of(both, process), bytes_of(alone, process) + weights / 2);
#endif
}

TEST(SpeculateBudget, ADraftThatWouldHaveToBeStreamedIsRefused) {
  OpenOptions options;
  options.memory_bytes = 0;
  options.n_ctx = 64;
  const std::filesystem::path path = test::builtin_model("tales-29m-moe-Q4_K_M.gguf");
  options.memory_bytes = Model::open(path, options).plan().floor_bytes + (1u << 20);
  try {
    open_draft(path, options);
    ADD_FAILURE() << "opened a draft that is streamed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
  }
}

}  // namespace
}  // namespace sluice
