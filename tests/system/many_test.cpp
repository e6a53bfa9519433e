// Goal: sequences that share passes do not notice one another. Method: eight sequences of the built-in
// mixture of experts, each with a text of its own, step together in random groups under a budget that streams
// experts; at random layers some are cancelled, at random reads the drive fails. Whatever is delivered is,
// bit for bit, what the sequence gets alone, and no page of the KV cache is lost.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/random.hpp"
#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/failing_backend.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

constexpr std::size_t k_n_sequences = 8;

/// The text of one sequence: tokens that no two sequences share, of different lengths.
std::vector<TokenId> text_of(std::size_t sequence) {
  base::SplitMix64 random(100 + sequence);
  std::vector<TokenId> tokens(24 + 13 * sequence);
  for (TokenId& token : tokens) token = static_cast<TokenId>(300 + random.below(7000));
  return tokens;
}

Model open(test::ReadFaults* faults) {
  OpenOptions options;
  options.n_ctx = 192;
  options.n_threads = 2;
  options.prefill_chunk = 96;
  options.max_sequences = k_n_sequences;
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  const auto path = test::builtin_model("tales-29m-moe-Q4_K_M.gguf");
  if (faults == nullptr) return engine::open_model(path, options, hooks);
  const Plan plan = engine::open_model(path, options, hooks).plan();
  options.memory_bytes = plan.floor_bytes + (plan.resident_from_bytes - plan.floor_bytes) / 5;
  hooks.wrap_backend = [faults](std::unique_ptr<storage::Backend> inner) {
    return std::make_unique<test::FailingBackend>(std::move(inner), *faults);
  };
  return engine::open_model(path, options, hooks);
}

using Logits = std::vector<std::vector<float>>;

/// The logits after each token, of each sequence alone.
std::vector<Logits> logits_alone() {
  Model model = open(nullptr);
  std::vector<Logits> all;
  for (std::size_t i = 0; i < k_n_sequences; ++i) {
    Sequence sequence = model.new_sequence();
    const std::vector<TokenId> tokens = text_of(i);
    const StepItem item{&sequence, tokens, LogitsWanted::all};
    Logits& logits = all.emplace_back();
    model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> row) {
      logits.emplace_back(row.begin(), row.end());
    });
  }
  return all;
}

std::uint32_t n_free_pages(Model& model) {
  return ModelAccess::impl(model).kv->pages(0).n_free();
}

/// Sequences of one model that step together at random.
class Crowd {
 public:
  Crowd(Model& model, test::ReadFaults& faults, std::uint64_t seed)
      : model_(model), faults_(faults), random_(seed), expected_(logits_alone()) {
    for (std::size_t i = 0; i < k_n_sequences; ++i) texts_.push_back(text_of(i));
    for (std::size_t i = 0; i < k_n_sequences; ++i) sequences_.push_back(model.new_sequence());
    model.set_progress([this](double, std::size_t) {
      if (layer_++ != cancel_layer_) return;
      for (const std::size_t item : to_cancel_) cancels_[item] = true;
    });
  }

  void round() {
    items_.clear();
    item_sequences_.clear();
    to_cancel_.clear();
    for (auto& cancel : cancels_) cancel = false;
    std::size_t room = model_.plan().prefill_chunk;
    for (std::size_t i = 0; i < k_n_sequences; ++i) {
      if (random_.below(3) == 0) continue;
      const std::span<const TokenId> left = std::span(texts_[i]).subspan(sequences_[i].n_tokens());
      const std::size_t n = random_.below(2) == 0 ? 1 : 1 + random_.below(30);
      if (left.empty()) {
        sequences_[i].rewind(static_cast<std::uint32_t>(random_.below(texts_[i].size())));
        continue;
      }
      if (std::min(n, left.size()) > room) continue;
      room -= std::min(n, left.size());
      if (random_.below(6) == 0) to_cancel_.insert(items_.size());
      items_.push_back({&sequences_[i], left.first(std::min(n, left.size())), LogitsWanted::all, 0,
                        &cancels_[items_.size()]});
      item_sequences_.push_back(i);
    }
    if (items_.empty()) return;
    cancel_layer_ = random_.below(model_.info().n_layers);
    layer_ = 0;
    compute();
  }

  std::size_t n_done = 0, n_cancelled = 0, n_unreadable = 0, n_together = 0;

 private:
  void compute() {
    std::vector<std::uint32_t> before(items_.size()), n_rows(items_.size(), 0);
    for (std::size_t i = 0; i < items_.size(); ++i) before[i] = items_[i].sequence->n_tokens();
    faults_.is_armed = random_.below(2) == 0;
    const std::vector<ItemFailure> failures =
        model_.pass(items_, [&](std::size_t item, std::size_t token, std::span<const float> logits) {
          const std::vector<float>& expected = expected_[item_sequences_[item]][before[item] + token];
          ASSERT_EQ(std::memcmp(expected.data(), logits.data(), logits.size_bytes()), 0)
              << "sequence " << item_sequences_[item] << " position " << before[item] + token;
          ++n_rows[item];
        });
    faults_.is_armed = false;
    std::set<std::size_t> failed;
    for (const ItemFailure& failure : failures) {
      failed.insert(failure.item);
      ++(failure.code == ErrorCode::cancelled ? n_cancelled : n_unreadable);
      if (failure.code == ErrorCode::cancelled) {
        EXPECT_EQ(to_cancel_.count(failure.item), 1u);
      } else {
        EXPECT_EQ(failure.code, ErrorCode::io);
        EXPECT_NE(failure.message.find("_exps.weight (expert "), std::string::npos) << failure.message;
      }
    }
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const bool is_done = failed.count(i) == 0;
      EXPECT_EQ(n_rows[i], is_done ? items_[i].tokens.size() : 0u);
      EXPECT_EQ(items_[i].sequence->n_tokens(), before[i] + n_rows[i]);
      EXPECT_TRUE(!is_done || to_cancel_.count(i) == 0) << "the flag was not seen";
    }
    n_done += items_.size() - failed.size();
    n_together += !failures.empty() && failed.size() < items_.size();
  }

  Model& model_;
  test::ReadFaults& faults_;
  base::SplitMix64 random_;
  std::vector<Logits> expected_;
  std::vector<std::vector<TokenId>> texts_;
  std::vector<Sequence> sequences_;
  std::vector<StepItem> items_;
  std::vector<std::size_t> item_sequences_;
  std::set<std::size_t> to_cancel_;
  std::array<std::atomic<bool>, k_n_sequences> cancels_{};
  std::size_t layer_ = 0, cancel_layer_ = 0;
};

TEST(Many, SequencesThatShareAPassGetWhatTheyGetAlone) {
  test::ReadFaults faults;
  faults.one_of = 200;
  Model model = open(&faults);
  ASSERT_FALSE(model.plan().fully_resident());
  const std::uint32_t n_free = n_free_pages(model);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    {
      Crowd crowd(model, faults, seed);
      for (int round = 0; round < 60 && !::testing::Test::HasFatalFailure(); ++round) crowd.round();
      EXPECT_GT(crowd.n_done, 100u);
      EXPECT_GT(crowd.n_cancelled, 10u);
      EXPECT_GT(crowd.n_unreadable, 5u) << faults.n_failed << " reads failed";
      EXPECT_GT(crowd.n_together, 10u) << "failing beside others was hardly tested";
      model.set_progress({});
    }
    EXPECT_EQ(n_free_pages(model), n_free) << "pages are lost";
  }
}

TEST(Many, AStepThrowsForAFailedItemAfterTheOthersAreDone) {
  Model model = open(nullptr);
  Sequence one = model.new_sequence(), other = model.new_sequence();
  const std::vector<TokenId> first = text_of(1), second = text_of(2);
  std::atomic<bool> cancel = true;
  const std::array<StepItem, 2> items = {
      {{&one, first, LogitsWanted::last, 0, &cancel}, {&other, second, LogitsWanted::last}}};
  std::size_t n_rows = 0;
  try {
    model.step(items, [&](std::size_t item, std::size_t, std::span<const float>) {
      EXPECT_EQ(item, 1u);
      ++n_rows;
    });
    ADD_FAILURE() << "the cancelled item was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
  EXPECT_EQ(n_rows, 1u);
  EXPECT_EQ(one.n_tokens(), 0u);
  EXPECT_EQ(other.n_tokens(), second.size());
}

TEST(Many, APassRefusesMoreRowsThanItCanHold) {
  Model model = open(nullptr);
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> tokens(model.plan().prefill_chunk + 1, 300);
  const StepItem item{&sequence, tokens};
  EXPECT_THROW(model.pass({&item, 1}), Error);
  EXPECT_EQ(sequence.n_tokens(), 0u);
}

}  // namespace
}  // namespace sluice
