// Goal: a recurrent state is that of its sequence's tokens, whatever passes computed them: all logits are,
// bit for bit, those of one pass over the whole text by a resident model. Method: tiny models of the
// recurrent architectures; chunks, threads and budgets, and random lives of some sequences that step
// together, are cancelled, hit unreadable experts, go back, and begin with a part of another.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>

#include "base/random.hpp"
#include "engine/model/model_impl.hpp"
#include "engine/speculate/speculator.hpp"
#include "sluice/sluice.hpp"
#include "support/failing_backend.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

constexpr std::array k_architectures = {"qwen35", "qwen35moe", "qwen3next"};
constexpr std::size_t k_n_tokens = 100, k_n_sequences = 3;

std::vector<TokenId> text_of(std::size_t sequence, std::size_t n = k_n_tokens) {
  base::SplitMix64 random(100 + sequence);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(256));
  return tokens;
}

class Recurrent : public ::testing::TestWithParam<const char*> {
 protected:
  Recurrent() {
    test::TinyModel tiny = test::tiny_model_of(GetParam());
    tiny.n_layers = 7;  // Layers 2 and 5 have attention.
    path_ = test::write_tiny_model(dir_.path(), tiny);
    options_.n_ctx = 256;
    options_.n_threads = 2;
    options_.prefill_chunk = 112;
    options_.max_sequences = k_n_sequences;
    hooks_.process_bytes = 0;
  }
  Model open() const { return engine::open_model(path_, options_, hooks_); }
  /// So that weights stream: `percent` of what lies between the floor and all in memory.
  void set_budget(std::uint64_t percent) {
    options_.memory_bytes = 0;
    const Plan plan = open().plan();
    options_.memory_bytes = plan.floor_bytes + (plan.resident_from_bytes - plan.floor_bytes) * percent / 100;
  }
  static std::vector<float> logits_of(Model& model, std::span<const TokenId> tokens) {
    Sequence sequence = model.new_sequence();
    std::vector<float> all;
    const StepItem item{&sequence, tokens, LogitsWanted::all};
    model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
      all.insert(all.end(), logits.begin(), logits.end());
    });
    return all;
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  OpenOptions options_;
  engine::Hooks hooks_;
};

INSTANTIATE_TEST_SUITE_P(All, Recurrent, ::testing::ValuesIn(k_architectures));

TEST_P(Recurrent, PlacementChunksAndThreadsGiveTheSameBits) {
  Model whole = open();
  ASSERT_TRUE(whole.plan().fully_resident());
  const std::vector<TokenId> tokens = text_of(0);
  const std::vector<float> expected = logits_of(whole, tokens);
  std::uint64_t n_streamed = 0;
  for (const std::uint32_t chunk : {1u, 2u, 7u, 33u, 100u}) {
    for (const std::uint64_t percent : {0u, 40u}) {
      options_.prefill_chunk = chunk;
      options_.n_threads = chunk == 7 ? 1 : 3;
      set_budget(percent);
      Model model = open();
      n_streamed += model.plan().streamed_bytes;
      EXPECT_EQ(logits_of(model, tokens), expected) << "chunk " << chunk << " at " << percent << " %";
    }
  }
  EXPECT_GT(n_streamed, 0u);
}

TEST_P(Recurrent, ThePlanHasTheStateToTheByte) {
  const Model model = open();
  std::uint64_t planned = 0;
  for (const PlanItem& item : model.plan().items) planned += item.what == "recurrent state" ? item.bytes : 0;
  // 5 layers of 2 key and 4 value heads of 32: 3 rows of 256 channels and 4 matrices, twice; and a log of
  // rows.
  constexpr std::uint64_t k_state = 5 * (3 * 256 + 4 * 32 * 32) * sizeof(float);
  constexpr std::uint64_t k_log = 5 * model::k_state_log_rows * (256 + 8) * sizeof(float);
  EXPECT_EQ(planned, k_n_sequences * (2 * k_state + k_log));
  EXPECT_EQ(model.stats().state_bytes, planned);
  EXPECT_EQ(model.plan().rewind_tokens, model::k_state_log_rows);
}

/// Sequences whose logits are known at every position of their texts.
class Lives {
 public:
  Lives(Model& model, test::ReadFaults& faults, std::vector<std::vector<float>> expected, std::uint64_t seed)
      : model_(model), faults_(faults), expected_(std::move(expected)), random_(seed) {
    for (std::size_t i = 0; i < k_n_sequences; ++i) {
      sequences_.push_back(model.new_sequence());
      text_idx_.push_back(i);
    }
    model.set_progress([this](double, std::size_t) {
      if (layer_++ == cancel_layer_ && to_cancel_ < k_n_sequences) cancels_[to_cancel_] = true;
    });
  }
  ~Lives() { model_.set_progress({}); }

  void round() {
    const std::uint64_t what = random_.below(8);
    const std::size_t i = random_.below(k_n_sequences);
    if (what == 0) return go_back(i);
    if (what == 1 && random_.below(3) == 0) return share(i, (i + 1) % k_n_sequences);
    pass();
  }

  std::size_t n_done = 0, n_failed = 0, n_far = 0, n_shared = 0;

 private:
  void go_back(std::size_t i) {
    const std::uint32_t n = sequences_[i].n_tokens();
    const auto back = static_cast<std::uint32_t>(random_.below(4) == 0 ? n : random_.below(12));
    const std::uint32_t to = n - std::min(n, back);
    n_far += sequences_[i].rewind(to) < to;
  }

  void share(std::size_t to, std::size_t from) {
    sequences_[to].rewind(0);
    const std::uint32_t n = sequences_[from].n_tokens();
    const std::uint32_t wanted = n - std::min<std::uint32_t>(n, static_cast<std::uint32_t>(random_.below(9)));
    n_shared += sequences_[to].share_prefix(sequences_[from], wanted) != 0;
    text_idx_[to] = text_idx_[from];
  }

  void pass() {
    std::vector<std::vector<TokenId>> texts;
    std::vector<std::size_t> members;
    std::vector<std::uint32_t> before;
    for (std::size_t i = 0; i < k_n_sequences; ++i) {
      if (random_.below(3) == 0) continue;
      const std::vector<TokenId> text = text_of(text_idx_[i]);
      const std::uint32_t at = sequences_[i].n_tokens();
      if (at == text.size()) sequences_[i].rewind(0);
      const auto left = std::span(text).subspan(sequences_[i].n_tokens());
      const std::size_t n = random_.below(3) == 0 ? 1 + random_.below(36) : 1 + random_.below(4);
      const auto tokens = left.first(std::min(n, left.size()));
      texts.emplace_back(tokens.begin(), tokens.end());
      members.push_back(i);
      before.push_back(sequences_[i].n_tokens());
    }
    if (members.empty()) return;
    std::vector<StepItem> items;
    for (std::size_t k = 0; k < members.size(); ++k) {
      cancels_[k] = false;
      items.push_back({&sequences_[members[k]], texts[k], LogitsWanted::all, 0, &cancels_[k]});
    }
    to_cancel_ = random_.below(4) == 0 ? random_.below(items.size()) : k_n_sequences;
    cancel_layer_ = random_.below(model_.info().n_layers);
    layer_ = 0;
    faults_.is_armed = random_.below(3) == 0;
    std::vector<ItemFailure> failures;
    try {
      failures = model_.pass(items, [&](std::size_t item, std::size_t token, std::span<const float> logits) {
        const float* expected =
            expected_[text_idx_[members[item]]].data() + (before[item] + token) * logits.size();
        ASSERT_EQ(std::memcmp(expected, logits.data(), logits.size_bytes()), 0)
            << "position " << before[item] + token << " of a pass of " << items[item].tokens.size();
      });
      n_done += items.size() - failures.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();  // A weight that all need.
      n_failed += items.size();
    }
    faults_.is_armed = false;
    n_failed += failures.size();
  }

  Model& model_;
  test::ReadFaults& faults_;
  std::vector<std::vector<float>> expected_;  ///< By text: the logits of all positions.
  base::SplitMix64 random_;
  std::vector<Sequence> sequences_;
  std::vector<std::size_t> text_idx_;  ///< Of each sequence.
  std::array<std::atomic<bool>, k_n_sequences> cancels_{};
  std::size_t layer_ = 0, cancel_layer_ = 0, to_cancel_ = k_n_sequences;
};

TEST_P(Recurrent, LivesOfSequencesGiveTheBitsOfOnePass) {
  std::vector<std::vector<float>> expected;
  {
    Model whole = open();
    for (std::size_t i = 0; i < k_n_sequences; ++i) expected.push_back(logits_of(whole, text_of(i)));
  }
  set_budget(20);
  test::ReadFaults faults;
  faults.one_of = 40;
  hooks_.wrap_backend = [&faults](std::unique_ptr<storage::Backend> inner) {
    return std::make_unique<test::FailingBackend>(std::move(inner), faults);
  };
  Model model = open();
  ASSERT_FALSE(model.plan().fully_resident());
  std::size_t n_failed = 0, n_far = 0, n_shared = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Lives lives(model, faults, expected, seed);
    for (int round = 0; round < 150 && !HasFatalFailure(); ++round) lives.round();
    EXPECT_GT(lives.n_done, 100u);
    n_failed += lives.n_failed;
    n_far += lives.n_far;
    n_shared += lives.n_shared;
  }
  EXPECT_GT(n_failed, 30u);
  EXPECT_GT(n_far, 1u) << "nothing was computed again";
  EXPECT_GT(n_shared, 3u);
}

/// What follows the text, by a speculator whose guesses are right but for each multiple of `error`.
std::vector<TokenId> continued(Model& model, std::span<const TokenId> text, std::span<const TokenId> truth,
                               std::size_t error) {
  SpeculateOptions ungated;
  ungated.max_guesses = k_max_guesses;
  ungated.gate = false;
  Speculator speculator(model, ungated);
  speculator.impl().oracle = [&](std::span<const TokenId> so_far, std::uint32_t n_max) {
    std::vector<TokenId> guesses;
    for (std::size_t at = so_far.size() - text.size(); guesses.size() < n_max; ++at) {
      const TokenId token = at < truth.size() ? truth[at] : 0;
      guesses.push_back(at % error == 0 ? (token + 1) % 256 : token);
    }
    return guesses;
  };
  GenerateOptions options;
  options.sampler.temperature = 0.8f;
  options.sampler.seed = 3;
  options.max_tokens = 60;
  options.ignore_eos = true;
  if (!truth.empty()) options.speculator = &speculator;
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> tokens = generate(model, sequence, text, options).tokens;
  EXPECT_EQ(sequence.n_tokens(), text.size() + tokens.size() - 1);
  // And it can go on.
  options.speculator = nullptr;
  const TokenId last = tokens.back();
  std::vector<TokenId> all = tokens;
  for (const TokenId token : generate(model, sequence, {&last, 1}, options).tokens) all.push_back(token);
  return all;
}

TEST_P(Recurrent, SpeculationGivesTheSameTokens) {
  Model model = open();
  const std::vector<TokenId> text = text_of(1, 40);
  const std::vector<TokenId> truth = continued(model, text, {}, 1);
  for (const std::size_t error : {1u, 2u, 5u, 9u, 1000u}) {
    const Stats before = model.stats();
    EXPECT_EQ(continued(model, text, truth, error), truth) << "each " << error << "th guess is wrong";
    const Stats after = model.stats();  // Guesses of the oracle count as those of a draft.
    EXPECT_EQ(after.draft.n_accepted == before.draft.n_accepted, error == 1);
    EXPECT_GT(after.draft.n_guessed, before.draft.n_guessed);
  }
}

TEST_P(Recurrent, LookupAndARecurrentDraftGiveTheSameTokens) {
  Model model = open();
  const std::vector<TokenId> text = text_of(2, 30);
  GenerateOptions options;
  options.sampler.temperature = 0.0f;
  options.max_tokens = 80;
  options.ignore_eos = true;
  const auto answer = [&](Speculator* speculator) {
    options.speculator = speculator;
    Sequence sequence = model.new_sequence();
    return generate(model, sequence, text, options).tokens;
  };
  const std::vector<TokenId> expected = answer(nullptr);
  SpeculateOptions ungated;
  ungated.max_guesses = 4;
  ungated.gate = false;
  Speculator lookup(model, ungated);
  EXPECT_EQ(answer(&lookup), expected);
  ungated.lookup = false;
  Speculator draft(model, open(), ungated);
  EXPECT_EQ(answer(&draft), expected);
  EXPECT_GT(model.stats().draft.n_accepted, 40u) << "a draft that is the model itself guesses right";
}

TEST(RecurrentModel, AgreesWithThePeerOnARealText) {
  SLUICE_NEEDS_DATA(path, "models/tales-hybrid-34m-moe-mtp-Q4_K_M.gguf");
  SLUICE_NEEDS_DATA(text_path, "text/tinystories.500k.txt");
  OpenOptions options;
  options.n_threads = 2;
  options.n_ctx = 512;
  Model model = Model::open(path, options);
  EXPECT_EQ(model.info().n_layers, 8u) << "the ninth guesses further tokens and is not run";
  constexpr std::size_t k_n_bytes = 60'000;
  const std::vector<TokenId> tokens =
      model.tokenizer().encode(test::read_text(text_path).substr(0, k_n_bytes));
  PerplexityOptions windows;
  windows.max_chunks = 16;
  // llama-perplexity -c 512 --chunks 16 of these bytes says 4.6667.
  EXPECT_NEAR(perplexity(model, tokens, windows).perplexity, 4.6667, 0.005 * 4.6667);
}

}  // namespace
}  // namespace sluice
