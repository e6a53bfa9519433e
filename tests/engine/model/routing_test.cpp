// Goal: the routing that is observed is the routing that was computed, a replay of it predicts the engine's
// hits exactly, and use counts survive from run to run without ever ending one. Method: tiny models on disk,
// whose experts all have the same size, under budgets that hold a part of them.
#include "sluice/routing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/model/heat.hpp"
#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

using ::testing::HasSubstr;

struct Tiny {
  test::TempDir dir;
  std::filesystem::path path;
  OpenOptions options;
  engine::Hooks hooks;
  std::uint64_t floor_bytes = 0, resident_from_bytes = 0;

  explicit Tiny(const test::TinyModel& shape = {}) : path(test::write_tiny_model(dir.path(), shape)) {
    options.n_threads = 1;
    options.prefill_chunk = 4;
    options.look_ahead = false;  // What it reads depends on the clock.
    hooks.process_bytes = 0;
    const Model model = open();
    floor_bytes = model.plan().floor_bytes;
    resident_from_bytes = model.plan().resident_from_bytes;
  }
  Model open() const { return engine::open_model(path, options, hooks); }
  void set_budget(int percent) {
    options.memory_bytes =
        floor_bytes + (resident_from_bytes - floor_bytes) * static_cast<std::uint64_t>(percent) / 100;
  }
};

std::vector<TokenId> some_tokens(std::size_t n) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>((i * i * 7 + i * 31) % 256));
  return tokens;
}

void step(Model& model, Sequence& sequence, std::span<const TokenId> tokens) {
  const StepItem item{&sequence, tokens, LogitsWanted::none};
  model.step({&item, 1});
}

void decode(Model& model, Sequence& sequence, std::span<const TokenId> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) step(model, sequence, tokens.subspan(i, 1));
}

/// Collects what an observer gets into a trace.
RoutingObserver recorder(RoutingTrace& trace, const ModelInfo& info) {
  trace.n_layers = static_cast<std::uint32_t>(info.expert_bytes.size());
  trace.n_experts = info.n_experts;
  trace.n_used = info.n_experts_used;
  return [&trace](const RoutedPass& pass) {
    ASSERT_EQ(pass.n_layers, trace.n_layers);
    ASSERT_EQ(pass.n_used, trace.n_used);
    ASSERT_EQ(pass.experts.size(), std::size_t{pass.n_layers} * pass.n_tokens * pass.n_used);
    for (std::uint32_t token = 0; token < pass.n_tokens; ++token) {
      trace.is_prompt.push_back(!pass.is_decode);
      for (std::uint32_t layer = 0; layer < pass.n_layers; ++layer) {
        const auto ids =
            pass.experts.subspan((std::size_t{layer} * pass.n_tokens + token) * pass.n_used, pass.n_used);
        trace.experts.insert(trace.experts.end(), ids.begin(), ids.end());
      }
    }
  };
}

TEST(Routing, IsTheSameInAnyPassesAndUnderAnyBudget) {
  Tiny tiny;
  const std::vector<TokenId> tokens = some_tokens(40);
  const auto observed = [&](int percent, bool one_by_one) {
    RoutingTrace trace;
    tiny.set_budget(percent);
    tiny.options.on_routing = recorder(trace, tiny.open().info());
    Model model = tiny.open();
    Sequence sequence = model.new_sequence();
    one_by_one ? decode(model, sequence, tokens) : step(model, sequence, tokens);
    tiny.options.on_routing = {};
    EXPECT_EQ(trace.n_tokens(), tokens.size());
    EXPECT_EQ(trace.is_prompt, std::vector<bool>(tokens.size(), !one_by_one));
    return trace.experts;
  };
  const std::vector<std::uint16_t> reference = observed(100, false);
  EXPECT_GT(std::set<std::uint16_t>(reference.begin(), reference.end()).size(), 2u);
  EXPECT_EQ(observed(10, false), reference);
  EXPECT_EQ(observed(10, true), reference);
}

TEST(Routing, TheBufferOfAnObserverIsPartOfThePlan) {
  Tiny tiny;
  tiny.options.prefill_chunk = 64;
  const std::uint64_t without = tiny.open().plan().planned_bytes;
  tiny.options.on_routing = [](const RoutedPass&) {};
  const Model model = tiny.open();
  EXPECT_EQ(model.plan().planned_bytes - without,
            64 * model.info().expert_bytes.size() * model.info().n_experts_used * sizeof(std::uint16_t));
}

TEST(Routing, AReplayPredictsTheEnginesHitsExactly) {
  Tiny tiny;
  const std::vector<TokenId> tokens = some_tokens(200);
  std::set<std::uint64_t> sizes;
  for (const CachePolicy policy : {CachePolicy::lfru, CachePolicy::lru}) {
    for (const int percent : {5, 15, 25, 35, 50, 70, 85}) {
      RoutingTrace trace;
      tiny.options.policy = policy;
      tiny.set_budget(percent);
      tiny.options.on_routing = recorder(trace, tiny.open().info());
      Model model = tiny.open();
      tiny.options.on_routing = {};
      Sequence sequence = model.new_sequence();
      decode(model, sequence, tokens);
      const Stats stats = model.stats();
      const ReplayPolicy replayed = policy == CachePolicy::lru ? ReplayPolicy::lru : ReplayPolicy::lfru;
      const ReplayCell cell = replay_trace(trace, replayed, model.plan().n_cached_units, 0);
      EXPECT_EQ(cell.n_wanted, stats.n_hits + stats.n_joins + stats.n_misses);
      EXPECT_EQ(cell.n_hits, stats.n_hits)
          << replay_policy_name(replayed) << " with " << model.plan().n_cached_units;
      sizes.insert(model.plan().n_cached_units);
    }
  }
  EXPECT_GE(sizes.size(), 4u) << "the budgets gave too few cache sizes to test";
}

TEST(Routing, EveryShareOfTheExpertsReadsItsMissesAndNothingElse) {
  test::TinyModel shape;
  shape.n_layers = 4;
  shape.n_experts = 32;
  shape.n_experts_used = 4;
  Tiny tiny(shape);
  const std::vector<TokenId> tokens = some_tokens(150);
  // What a miss reads: the blocks around its three matrices.
  std::uint64_t window_bytes = 0;
  const auto prepared = engine::prepare(engine::parse_header(tiny.path), tiny.options, false);
  for (const residency::LayerUnits& layer : prepared->units.layers) {
    for (const auto& expert : layer.experts) {
      for (std::size_t part = 0; part < layer.n_parts(); ++part) {
        const storage::File& file = *prepared->shards[expert[part].shard_idx];
        window_bytes += storage::read_window(expert[part].offset_bytes, layer.shapes[part].bytes(),
                                             file.alignment_bytes())
                            .length;
      }
    }
  }
  const auto n_units = static_cast<double>(prepared->units.n_units());
  const double unit_bytes = static_cast<double>(window_bytes) / n_units;
  for (const int share : {10, 25, 50, 90}) {
    RoutingTrace trace;
    tiny.set_budget(share);
    tiny.options.on_routing = recorder(trace, tiny.open().info());
    Model model = tiny.open();
    tiny.options.on_routing = {};
    EXPECT_NEAR(100 * model.plan().n_cached_units / n_units, share, 6) << "the budget misses its share";
    Sequence sequence = model.new_sequence();
    decode(model, sequence, tokens);
    const Stats stats = model.stats();
    const double expected = static_cast<double>(stats.n_misses) * unit_bytes;
    EXPECT_NEAR(static_cast<double>(stats.streamed_read_bytes), expected, 0.03 * expected) << share << " %";
    const ReplayCell cell = replay_trace(trace, ReplayPolicy::lfru, model.plan().n_cached_units, 0);
    EXPECT_EQ(cell.n_hits, stats.n_hits) << share << " %";
    EXPECT_EQ(cell.n_wanted - cell.n_hits, stats.n_joins + stats.n_misses) << share << " %";
  }
}

TEST(Heat, HotExpertsOfAnEarlierRunAreThereWhenTheNextBegins) {
  Tiny tiny;
  tiny.set_budget(50);
  tiny.options.heat = tiny.dir / "heat" / "";
  const std::vector<TokenId> tokens = some_tokens(60);
  const auto misses = [&](bool preload) {
    Model model = tiny.open();
    if (preload) model.preload_while([] { return true; });
    Sequence sequence = model.new_sequence();
    decode(model, sequence, std::span(tokens).first(1));
    const Stats stats = model.stats();
    EXPECT_EQ(stats.n_preloaded != 0, preload);
    decode(model, sequence, std::span(tokens).subspan(1));
    model.save_heat();
    return stats.n_misses;
  };
  EXPECT_EQ(misses(false), tiny.open().info().expert_bytes.size() * tiny.open().info().n_experts_used);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(tiny.dir / "heat"))
    files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files.front().extension(), ".json");
  EXPECT_LT(misses(true), tiny.open().info().expert_bytes.size() * tiny.open().info().n_experts_used);
}

TEST(Heat, TheForecastIsOfEarlierRunsAndOnlyWhereExpertsStream) {
  Tiny tiny;
  tiny.set_budget(40);
  tiny.options.heat = tiny.dir / "heat.json";
  const std::vector<TokenId> tokens = some_tokens(100);
  {
    Model model = tiny.open();
    EXPECT_FALSE(model.heat_forecast());
    Sequence sequence = model.new_sequence();
    step(model, sequence, tokens);
    EXPECT_FALSE(model.heat_forecast()) << "of earlier runs";
    model.save_heat();
  }
  Model model = tiny.open();
  const auto forecast = model.heat_forecast();
  ASSERT_TRUE(forecast);
  EXPECT_EQ(forecast->n_tokens, 100);
  const Plan& plan = model.plan();
  const double share = static_cast<double>(plan.n_cached_units) / static_cast<double>(plan.n_units);
  EXPECT_GE(forecast->hit_rate, share);
  EXPECT_LT(forecast->hit_rate, 1);
  Sequence sequence = model.new_sequence();
  step(model, sequence, tokens);
  EXPECT_EQ(model.heat_forecast()->hit_rate, forecast->hit_rate);

  tiny.options.heat.clear();
  EXPECT_FALSE(tiny.open().heat_forecast());
  tiny.options.heat = tiny.dir / "heat.json";
  tiny.set_budget(100);
  EXPECT_FALSE(tiny.open().heat_forecast()) << "no expert streams";
}

TEST(Heat, SavingTwiceCountsNothingTwice) {
  Tiny tiny;
  tiny.set_budget(40);
  const std::vector<TokenId> tokens = some_tokens(60);
  const auto saved = [&](const std::string& name, bool saves_between) {
    tiny.options.heat = tiny.dir / name;
    Model model = tiny.open();
    Sequence sequence = model.new_sequence();
    step(model, sequence, std::span(tokens).first(30));
    if (saves_between) {
      for (int i = 0; i < 3; ++i) model.save_heat();
    }
    step(model, sequence, std::span(tokens).subspan(30));
    model.save_heat();
    if (saves_between) model.save_heat();
    const auto prepared = engine::prepare(engine::parse_header(tiny.path), tiny.options, false);
    const engine::Heat heat(tiny.options.heat, prepared->file, prepared->units,
                            [&](const gguf::TensorInfo& tensor, std::uint64_t offset, std::size_t bytes) {
                              static std::vector<std::byte> block;
                              block.resize(bytes);
                              prepared->shards[tensor.shard_idx]->read(tensor.offset_bytes + offset,
                                                                       block.data(), bytes);
                              return static_cast<const std::byte*>(block.data());
                            });
    return heat.load().value();
  };
  const residency::HeatCounts once = saved("once.json", false), often = saved("often.json", true);
  // The first half ages by the tokens of the second, 30 of a half-life of 8192, and counts are rounded.
  EXPECT_NEAR(often.n_tokens, once.n_tokens, 2);
  ASSERT_EQ(often.uses.size(), once.uses.size());
  for (std::size_t i = 0; i < once.uses.size(); ++i) EXPECT_NEAR(often.uses[i], once.uses[i], 2) << i;
}

TEST(Heat, PreloadingStaysWithinTheSlots) {
  Tiny tiny;
  tiny.set_budget(30);
  tiny.options.heat = tiny.dir / "heat.json";
  const std::vector<TokenId> tokens = some_tokens(100);
  {
    Model model = tiny.open();
    Sequence sequence = model.new_sequence();
    step(model, sequence, tokens);
    model.save_heat();
  }
  Model model = tiny.open();
  model.preload_while([] { return true; });
  EXPECT_EQ(model.stats().n_preloaded, model.plan().n_cached_units);
  EXPECT_LE(model.plan().planned_bytes, model.plan().budget_bytes);
}

TEST(Heat, ARunWithoutTokensAndARunWithoutTheOptionWriteNothing) {
  Tiny tiny;
  const std::filesystem::path path = tiny.dir / "heat.json";
  tiny.options.heat = path;
  tiny.open().save_heat();
  EXPECT_FALSE(std::filesystem::exists(path));
  tiny.options.heat.clear();
  Model model = tiny.open();
  Sequence sequence = model.new_sequence();
  step(model, sequence, some_tokens(3));
  model.save_heat();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Heat, ABadFileIsOneWarningAndNoError) {
  Tiny tiny;
  tiny.set_budget(40);
  tiny.options.heat = tiny.dir / "heat.json";
  const std::string text =
      "{\"format\": \"sluice-heat\", \"version\": 1, \"fingerprint\": \"0000000000000000\"}";
  test::write_bytes(tiny.options.heat, text.data(), text.size());
  ::testing::internal::CaptureStderr();
  {
    Model model = tiny.open();
    Sequence sequence = model.new_sequence();
    step(model, sequence, some_tokens(10));
    EXPECT_EQ(model.stats().n_preloaded, 0u);
    model.save_heat();
  }
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("belongs to another model"));
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  Model model = tiny.open();
  model.preload_while([] { return true; });
  EXPECT_GT(model.stats().n_preloaded, 0u) << "the file of another model was to be replaced";
}

TEST(Heat, TheEndOfEachRouterDecides) {
  const test::TempDir dir;
  const engine::Header header = engine::parse_header(test::write_tiny_model(dir.path(), {}));
  const gguf::ModelFile& file = header.file;
  std::string asked;
  const auto fingerprint = [&](std::string changed) {
    std::vector<std::byte> data;
    return engine::model_fingerprint(
        file, [&](const gguf::TensorInfo& tensor, std::uint64_t offset, std::size_t bytes) {
          EXPECT_EQ(offset + bytes, tensor.size_bytes);
          data.assign(bytes, std::byte{7});
          if (tensor.name == changed) data.back() = std::byte{8};
          asked = tensor.name;
          return data.data();
        });
  };
  const std::uint64_t one = fingerprint("");
  EXPECT_EQ(fingerprint(""), one);
  EXPECT_NE(fingerprint(asked), one);
}

TEST(Heat, ModelsThatRouteDifferentlyHaveDifferentFingerprints) {
  const auto name_of = [](std::uint32_t seed) {
    test::TinyModel tiny;
    tiny.seed = seed;
    const test::TempDir dir;
    OpenOptions options;
    options.heat = dir / "heat" / "";
    Model model = Model::open(test::write_tiny_model(dir.path(), tiny), options);
    Sequence sequence = model.new_sequence();
    step(model, sequence, some_tokens(3));
    model.save_heat();
    return std::filesystem::directory_iterator(dir / "heat")->path().filename().string();
  };
  EXPECT_EQ(name_of(1), name_of(1));
  EXPECT_NE(name_of(1), name_of(2));
}

}  // namespace
}  // namespace sluice
