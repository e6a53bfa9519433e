// Goal: sequences, steps and failures behave as the public interface says. Method: tiny models on disk.
#include "sluice/model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "engine/model/model_impl.hpp"
#include "support/failing_backend.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

struct Opened {
  test::TempDir dir;
  std::filesystem::path path;
  Opened() : path(test::write_tiny_model(dir.path(), {})) {}
  Model open(std::uint32_t max_sequences = 4, std::uint32_t chunk = 0) const {
    OpenOptions options;
    options.max_sequences = max_sequences;
    options.prefill_chunk = chunk;
    options.n_threads = 2;
    return Model::open(path, options);
  }
};

std::vector<TokenId> text(std::size_t n, int seed) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<TokenId>((i * 31 + static_cast<std::size_t>(seed) * 17 + i * i) % 256));
  return tokens;
}

std::vector<float> last_logits(Model& model, Sequence& sequence, std::span<const TokenId> tokens) {
  std::vector<float> result;
  const StepItem item{&sequence, tokens, LogitsWanted::last};
  model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
    result.assign(logits.begin(), logits.end());
  });
  return result;
}

ErrorCode code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_FALSE(std::string(error.what()).empty());
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::internal;
}

TEST(Model, SequencesOfOneStepDoNotTouchEachOther) {
  const Opened file;
  Model model = file.open();
  const auto a = text(30, 1), b = text(17, 2), c = text(1, 3);
  std::vector<std::vector<float>> alone;
  for (const auto& tokens : {a, b, c}) {
    Sequence sequence = model.new_sequence();
    alone.push_back(last_logits(model, sequence, tokens));
  }
  Sequence sa = model.new_sequence(), sb = model.new_sequence(), sc = model.new_sequence();
  const std::array<StepItem, 3> items = {
      {{&sa, a, LogitsWanted::last}, {&sb, b, LogitsWanted::last}, {&sc, c, LogitsWanted::last}}};
  std::vector<std::vector<float>> together(3);
  model.step(items, [&](std::size_t item, std::size_t, std::span<const float> logits) {
    together[item].assign(logits.begin(), logits.end());
  });
  EXPECT_EQ(together, alone);
  EXPECT_EQ(sa.n_tokens(), 30u);
  EXPECT_EQ(sb.n_tokens(), 17u);
  EXPECT_EQ(sc.n_tokens(), 1u);
}

TEST(Model, PassesOfAnySizeGiveTheSameBits) {
  const Opened file;
  const auto tokens = text(100, 4);
  std::vector<std::vector<float>> results;
  for (const std::uint32_t chunk : {1u, 3u, 64u, 100u, 0u}) {
    Model model = file.open(3, chunk);
    Sequence a = model.new_sequence(), b = model.new_sequence();
    // Two sequences whose passes are cut at different places.
    const auto other = text(41, 5);
    const std::array<StepItem, 2> items = {
        {{&b, other, LogitsWanted::none}, {&a, tokens, LogitsWanted::all}}};
    std::vector<float> all;
    std::size_t expected_row = 0;
    model.step(items, [&](std::size_t item, std::size_t row, std::span<const float> logits) {
      EXPECT_EQ(item, 1u);
      EXPECT_EQ(row, expected_row++);
      all.insert(all.end(), logits.begin(), logits.end());
    });
    EXPECT_EQ(a.n_tokens(), 100u);
    EXPECT_EQ(b.n_tokens(), 41u);
    results.push_back(all);
  }
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

TEST(Model, RewoundSequenceContinuesAsIfItHadNeverGoneOn) {
  const Opened file;
  Model model = file.open();
  const auto tokens = text(90, 6), tail = text(5, 7);
  Sequence straight = model.new_sequence(), cut = model.new_sequence();
  last_logits(model, straight, std::span(tokens).first(50));
  last_logits(model, cut, tokens);
  EXPECT_EQ(cut.rewind(50), 50u);
  EXPECT_EQ(cut.n_tokens(), 50u);
  EXPECT_EQ(last_logits(model, cut, tail), last_logits(model, straight, tail));
  EXPECT_EQ(code_of([&] { cut.rewind(56); }), ErrorCode::invalid_argument);
}

TEST(Model, SharedTokensContinueAsIfEachSequenceHadComputedThem) {
  const Opened file;
  Model model = file.open();
  const auto tokens = text(100, 6), tail = text(70, 7), other_tail = text(70, 8);
  const auto continued = [&](std::size_t n, std::span<const TokenId> more) {
    Sequence fresh = model.new_sequence();
    last_logits(model, fresh, std::span(tokens).first(n));
    return last_logits(model, fresh, more);
  };
  // In the middle of a page, at its start, and all of it.
  for (const std::uint32_t n : {30u, 64u, 100u}) {
    const auto expected = continued(n, tail), other_expected = continued(100, other_tail);
    Sequence first = model.new_sequence(), second = model.new_sequence(), third = model.new_sequence();
    last_logits(model, first, tokens);
    EXPECT_EQ(second.share_prefix(first, n), n);
    EXPECT_EQ(second.n_tokens(), n);
    EXPECT_EQ(third.share_prefix(second, n), n);
    // All write where they share a page, the first one behind what the others see.
    EXPECT_EQ(last_logits(model, second, tail), expected) << n;
    EXPECT_EQ(last_logits(model, first, other_tail), other_expected) << n;
    first.rewind(0);
    EXPECT_EQ(last_logits(model, third, tail), expected) << n;
  }
}

TEST(Model, OnlyAnEmptySequenceBeginsWithTheTokensOfAnotherOfItsModel) {
  const Opened file;
  Model model = file.open(), stranger = file.open();
  Sequence from = model.new_sequence(), to = model.new_sequence(), foreign = stranger.new_sequence();
  last_logits(model, from, text(10, 1));
  EXPECT_EQ(code_of([&] { to.share_prefix(from, 11); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { foreign.share_prefix(from, 5); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { from.share_prefix(to, 0); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { from.share_prefix(from, 5); }), ErrorCode::invalid_argument);
  EXPECT_EQ(to.share_prefix(from, 0), 0u);
  EXPECT_EQ(to.share_prefix(from, 10), 10u);
}

TEST(Model, AFullCacheIsToldBeforeAnythingIsComputedAndNothingIsLost) {
  const Opened file;
  OpenOptions options;
  options.max_sequences = 3;
  options.n_ctx = 256;
  options.kv_tokens = 320;
  options.prefill_chunk = 16;
  Model model = Model::open(file.path, options);
  EXPECT_EQ(model.plan().kv_tokens, 320u);
  Sequence a = model.new_sequence(), b = model.new_sequence(), c = model.new_sequence();
  // 320 tokens are 5 pages, and each sequence may have one that is not full: 7.
  last_logits(model, a, text(250, 1));
  last_logits(model, b, text(100, 2));
  EXPECT_EQ(model.stats().kv_bytes % 7, 0u);
  const auto expected = last_logits(model, b, text(10, 3));
  EXPECT_EQ(code_of([&] { last_logits(model, c, text(65, 4)); }), ErrorCode::kv_full);
  const auto first = text(20, 5), second = text(65, 6);
  const std::array<StepItem, 2> items = {{{&b, first}, {&c, second}}};
  EXPECT_EQ(code_of([&] { model.step(items); }), ErrorCode::kv_full);
  EXPECT_EQ(b.n_tokens(), 110u);
  EXPECT_EQ(c.n_tokens(), 0u);
  EXPECT_EQ(b.rewind(100), 100u);
  EXPECT_EQ(last_logits(model, b, text(10, 3)), expected) << "what it had is still there";
  a.rewind(0);
  last_logits(model, c, text(65, 4));
  EXPECT_EQ(c.n_tokens(), 65u);
}

TEST(Model, ContextLimitIsToldBeforeAnythingIsComputed) {
  const Opened file;
  Model model = file.open();
  Sequence sequence = model.new_sequence();
  EXPECT_EQ(sequence.n_free(), 256u);
  EXPECT_EQ(code_of([&] { last_logits(model, sequence, text(257, 1)); }), ErrorCode::context_full);
  EXPECT_EQ(sequence.n_tokens(), 0u);
  last_logits(model, sequence, text(256, 1));
  EXPECT_EQ(code_of([&] { last_logits(model, sequence, text(1, 1)); }), ErrorCode::context_full);
  EXPECT_EQ(sequence.n_tokens(), 256u);
}

TEST(Model, WrongRequestsAreNamedAndChangeNothing) {
  const Opened file;
  Model model = file.open();
  Model other = file.open();
  Sequence sequence = model.new_sequence(), foreign = other.new_sequence();
  const std::vector<TokenId> bad = {5, 260}, negative = {-1}, good = {5};
  EXPECT_EQ(code_of([&] { last_logits(model, sequence, bad); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { last_logits(model, sequence, negative); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { last_logits(model, sequence, {}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { last_logits(model, foreign, good); }), ErrorCode::invalid_argument);
  const std::array<StepItem, 2> twice = {
      {{&sequence, good, LogitsWanted::none}, {&sequence, good, LogitsWanted::none}}};
  EXPECT_EQ(code_of([&] { model.step(twice); }), ErrorCode::invalid_argument);
  const StepItem nothing{nullptr, good, LogitsWanted::none};
  EXPECT_EQ(code_of([&] { model.step({&nothing, 1}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(sequence.n_tokens(), 0u);
  model.step({});
}

TEST(Model, SequencesAreCountedAndTheirMemoryComesBack) {
  const Opened file;
  Model model = file.open(2);
  for (int round = 0; round < 5; ++round) {
    Sequence a = model.new_sequence(), b = model.new_sequence();
    EXPECT_EQ(code_of([&] { model.new_sequence(); }), ErrorCode::budget);
    last_logits(model, a, text(256, round));
    last_logits(model, b, text(256, round + 1));
  }
  Sequence moved = model.new_sequence();
  Sequence target = model.new_sequence();
  target = std::move(moved);
  EXPECT_NO_THROW(model.new_sequence());
}

TEST(Model, RaisedFlagCancelsAndTheSequenceGoesOn) {
  const Opened file;
  Model model = file.open();
  Sequence cancelled = model.new_sequence(), straight = model.new_sequence();
  const auto tokens = text(60, 8);
  last_logits(model, cancelled, std::span(tokens).first(10));
  std::atomic<bool> flag{true};
  model.set_cancel_flag(&flag);
  EXPECT_EQ(code_of([&] { last_logits(model, cancelled, std::span(tokens).subspan(10)); }),
            ErrorCode::cancelled);
  EXPECT_EQ(cancelled.n_tokens(), 10u);
  flag = false;
  EXPECT_EQ(last_logits(model, cancelled, std::span(tokens).subspan(10)),
            last_logits(model, straight, tokens));
}

TEST(Model, CancelBetweenPassesKeepsCompletePasses) {
  const Opened file;
  Model model = file.open(1, 16);
  Sequence sequence = model.new_sequence();
  const auto tokens = text(64, 9);
  std::atomic<bool> flag{false};
  model.set_cancel_flag(&flag);
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  EXPECT_EQ(code_of([&] {
              model.step({&item, 1},
                         [&](std::size_t, std::size_t token, std::span<const float>) { flag = token == 31; });
            }),
            ErrorCode::cancelled);
  EXPECT_EQ(sequence.n_tokens(), 32u) << "two passes of 16 were complete";
}

TEST(Model, ProgressGoesFromNothingToAlmostAllOfEachStep) {
  const Opened file;
  Model model = file.open(1, 16);
  Sequence sequence = model.new_sequence();
  std::vector<double> done;
  model.set_progress([&](double n_done, std::size_t n_tokens) {
    EXPECT_EQ(n_tokens, 40u);
    done.push_back(n_done);
  });
  last_logits(model, sequence, text(40, 2));
  ASSERT_EQ(done.size(), 3u * 3) << "three passes of three layers";
  EXPECT_EQ(done.front(), 0.0);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_DOUBLE_EQ(done[3], 16.0);
  EXPECT_NEAR(done.back(), 32 + 8 * 2.0 / 3, 1e-9);
  model.set_progress({});
  last_logits(model, sequence, text(1, 2));
  EXPECT_EQ(done.size(), 9u);
}

/// What a callback may try and must not: each is refused and changes nothing.
void expect_refusals(Model& model, Sequence& own, Sequence& other) {
  const TokenId token = 7;
  const StepItem item{&other, {&token, 1}};
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] {
             model.step({&item, 1});
           },
           [&] { model.step({}); },
           [&] { own.rewind(0); },
           [&] { other.rewind(0); },
           [&] { other.share_prefix(own, 1); },
           [&] { model.new_sequence(); },
           [&] { model.save_heat(); },
           [&] { model.set_progress({}); },
           [&] { model.preload_while([] { return true; }); },
           [&] { model.relieve(); },
       }) {
    EXPECT_EQ(code_of(call), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(model.stats().n_units, 24u);
}

TEST(Model, CallbacksThatCallTheModelAreRefusedAndChangeNothing) {
  const Opened file;
  OpenOptions options;
  options.max_sequences = 4;
  options.prefill_chunk = 16;
  std::function<void()> on_routing;
  options.on_routing = [&](const RoutedPass&) {
    if (on_routing) on_routing();
  };
  Model model = Model::open(file.path, options);
  const auto tokens = text(40, 4);
  Sequence plain = model.new_sequence(), sequence = model.new_sequence(), other = model.new_sequence();
  last_logits(model, other, std::span(tokens).first(5));
  const std::vector<float> expected = last_logits(model, plain, tokens);

  int n_sink = 0, n_progress = 0, n_routing = 0;
  model.set_progress([&](double, std::size_t) {
    if (n_progress++ == 4) expect_refusals(model, sequence, other);
  });
  on_routing = [&] {
    if (n_routing++ == 1) expect_refusals(model, sequence, other);
  };
  std::vector<float> logits;
  const StepItem item{&sequence, tokens, LogitsWanted::last};
  model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> row) {
    ++n_sink;
    expect_refusals(model, sequence, other);
    logits.assign(row.begin(), row.end());
  });
  EXPECT_EQ(n_sink, 1);
  EXPECT_GT(n_progress, 4);
  EXPECT_GT(n_routing, 1);
  EXPECT_EQ(logits, expected);
  EXPECT_EQ(sequence.n_tokens(), 40u);
  EXPECT_EQ(other.n_tokens(), 5u);
  model.set_progress({});
}

TEST(Model, ASequenceThatACallbackDestroysLivesUntilTheStepEnds) {
  const Opened file;
  Model model = file.open(2, 16);
  const auto tokens = text(40, 5);
  auto doomed = std::make_unique<Sequence>(model.new_sequence());
  Sequence other = model.new_sequence();
  const std::array<StepItem, 2> items = {
      {{doomed.get(), tokens, LogitsWanted::all}, {&other, tokens, LogitsWanted::last}}};
  std::vector<float> logits;
  model.step(items, [&](std::size_t, std::size_t, std::span<const float> row) {
    doomed.reset();
    logits.assign(row.begin(), row.end());
  });
  Sequence again = model.new_sequence();
  EXPECT_EQ(logits, last_logits(model, again, tokens));
  EXPECT_EQ(code_of([&] { model.new_sequence(); }), ErrorCode::budget);
}

TEST(Model, ASequenceWithoutItsModelCanOnlyBeDestroyed) {
  const Opened file;
  Model model = file.open();
  Sequence sequence = model.new_sequence();
  const auto tokens = text(10, 6);
  last_logits(model, sequence, tokens);
  model = file.open();
  EXPECT_EQ(code_of([&] { sequence.rewind(0); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { last_logits(model, sequence, tokens); }), ErrorCode::invalid_argument);
  EXPECT_EQ(sequence.n_tokens(), 10u);
  sequence = model.new_sequence();
  EXPECT_EQ(last_logits(model, sequence, tokens).size(), 260u);

  std::optional<Model> second(file.open());
  Sequence outlives = second->new_sequence();
  last_logits(*second, outlives, tokens);
  second.reset();
  EXPECT_EQ(code_of([&] { outlives.rewind(0); }), ErrorCode::invalid_argument);
  const Sequence taken = std::move(outlives);
  EXPECT_EQ(code_of([&] { last_logits(model, outlives, tokens); }), ErrorCode::invalid_argument);
}

TEST(Model, ReadErrorEndsTheStepNotTheModel) {
  const Opened file;
  test::ReadFaults faults;
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  hooks.wrap_backend = [&](std::unique_ptr<storage::Backend> inner) {
    return std::make_unique<test::FailingBackend>(std::move(inner), faults);
  };
  OpenOptions options;
  options.n_threads = 1;
  options.memory_bytes = 1u << 30;
  options.memory_bytes = engine::open_model(file.path, options, hooks).plan().floor_bytes;
  Model model = engine::open_model(file.path, options, hooks);
  ASSERT_FALSE(model.plan().fully_resident());
  Sequence sequence = model.new_sequence();
  const auto tokens = text(12, 3);
  faults.is_armed = true;
  EXPECT_EQ(code_of([&] { last_logits(model, sequence, tokens); }), ErrorCode::io);
  EXPECT_EQ(sequence.n_tokens(), 0u);
  faults.is_armed = false;
  Model whole = file.open();
  Sequence straight = whole.new_sequence();
  EXPECT_EQ(last_logits(model, sequence, tokens), last_logits(whole, straight, tokens));
}

TEST(Model, StatisticsAddUp) {
  const Opened file;
  Model model = file.open();
  Sequence sequence = model.new_sequence();
  last_logits(model, sequence, text(20, 1));
  for (int i = 0; i < 5; ++i) last_logits(model, sequence, text(1, i));
  const Stats stats = model.stats();
  EXPECT_EQ(stats.n_prefill_tokens, 20u);
  EXPECT_EQ(stats.n_decode_tokens, 5u);
  EXPECT_GT(stats.prefill_ns, 0u);
  EXPECT_GT(stats.decode_ns, 0u);
  EXPECT_EQ(stats.n_units, 24u);
  EXPECT_EQ(stats.n_threads, 2);
  EXPECT_EQ(stats.hit_rate(), 1.0) << "everything fits";
}

}  // namespace
}  // namespace sluice
