// Goal: streaming always-used weights changes speed, never tokens, for dense models and mixtures of every
// architecture. Method: tiny models and the built-in draft, budgets from the floor up, logits bit for bit.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

std::vector<TokenId> tokens_of(std::size_t n, std::uint32_t n_vocab) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7) % n_vocab));
  return tokens;
}

std::vector<float> logits_of(Model& model, Sequence& sequence, std::span<const TokenId> tokens) {
  std::vector<float> all;
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  });
  return all;
}

/// A long prompt, then single tokens.
std::vector<float> logits_of(Model& model) {
  Sequence sequence = model.new_sequence();
  const auto tokens = tokens_of(60, model.info().n_vocab);
  std::vector<float> all = logits_of(model, sequence, std::span(tokens).first(40));
  for (std::size_t i = 40; i < tokens.size(); ++i) {
    const auto one = logits_of(model, sequence, std::span(tokens).subspan(i, 1));
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

OpenOptions options_with(std::uint64_t memory_bytes) {
  OpenOptions options;
  options.n_ctx = 128;
  options.n_threads = 2;
  options.memory_bytes = memory_bytes;
  return options;
}

engine::Hooks fixed_process() {
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  return hooks;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(DensePlacement, EveryArchitectureGivesTheSameBitsFromTheFloorUp) {
  const test::TempDir dir;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "qwen3moe", "deepseek2"}) {
    for (const bool tied : {false, true}) {
      test::TinyModel tiny = test::tiny_model_of(architecture);
      tiny.tied_output = tied;
      tiny.n_layers = 5;
      const auto path = test::write_tiny_model(dir.path(), tiny);
      Model whole = engine::open_model(path, options_with(1u << 30), fixed_process());
      ASSERT_TRUE(whole.plan().fully_resident());
      const std::vector<float> expected = logits_of(whole);
      const std::uint64_t floor = whole.plan().floor_bytes, resident = whole.plan().resident_from_bytes;
      std::uint32_t n_streamed = 0;
      for (const std::uint64_t percent : {0u, 10u, 25u, 50u, 75u, 95u}) {
        OpenOptions options = options_with(floor + (resident - floor) * percent / 100);
        options.io = percent % 2 == 0 ? IoBackend::automatic : IoBackend::pread;
        options.prefill_chunk = percent == 0 ? 0 : 7;
        options.memory_bytes += percent == 0 ? 0 : 200'000;
        Model model = engine::open_model(path, options, fixed_process());
        n_streamed += model.plan().dense_streamed_bytes != 0;
        EXPECT_TRUE(same(logits_of(model), expected))
            << architecture << (tied ? ", tied" : "") << " at " << percent << " %";
      }
      EXPECT_GE(n_streamed, tiny.n_experts == 0 ? 2u : 1u)
          << architecture << ": nothing was streamed, so nothing was tested";
    }
  }
}

/// What a machine says whose free memory is another one at every look.
auto changing_memory(std::vector<std::uint64_t> free_kib) {
  auto n_looks = std::make_shared<std::size_t>(0);
  return [n_looks, free_kib = std::move(free_kib)] {
    platform::MemoryLimits limits;
    limits.total_bytes = limits.available_bytes = 8u << 20;
    limits.cgroup_limit_bytes = 8u << 20;
    limits.cgroup_unreclaimable_bytes = (8u << 20) - (free_kib[(*n_looks)++ % free_kib.size()] << 10);
    return limits;
  };
}

TEST(DensePlacement, MemoryPressureGivesTheSameBits) {
  // The mark is 128 KiB of free memory: a look at none takes 256, one at plenty gives all back.
  const std::vector<std::uint64_t> free_kib = {300, 0,   0, 90,  300, 8000, 0, 0, 0,
                                               0,   600, 0, 300, 300, 900,  0, 0};
  const test::TempDir dir;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "qwen3moe", "deepseek2"}) {
    test::TinyModel tiny = test::tiny_model_of(architecture);
    tiny.n_layers = 7;
    const auto path = test::write_tiny_model(dir.path(), tiny);
    Model whole = engine::open_model(path, options_with(1u << 30), fixed_process());
    const std::vector<float> expected = logits_of(whole);
    const std::uint64_t floor = whole.plan().floor_bytes, resident = whole.plan().resident_from_bytes;
    std::uint64_t n_released = 0, n_returned = 0;
    for (const std::uint64_t percent : {10u, 20u, 40u, 60u, 80u, 95u}) {
      OpenOptions options = options_with(floor + (resident - floor) * percent / 100);
      options.prefill_chunk = percent == 40 ? 4 : 7;
      engine::Hooks hooks = fixed_process();
      hooks.memory_limits = changing_memory(free_kib);
      Model model = engine::open_model(path, options, hooks);
      EXPECT_TRUE(same(logits_of(model), expected)) << architecture << " at " << percent << " %";
      const Stats stats = model.stats();
      EXPECT_LE(stats.pinned_bytes, model.plan().budget_bytes);
      if (model.plan().dense_streamed_bytes == 0 && model.plan().n_units != 0) {
        EXPECT_EQ(stats.n_blocks_released, 0u) << "where experts give way, attention that fits stays";
      }
      n_released += stats.n_blocks_released;
      n_returned += stats.n_blocks_returned;
    }
    EXPECT_GT(n_released, 20u) << architecture << ": nothing gave way, so nothing was tested";
    EXPECT_GT(n_returned, 20u) << architecture;
  }
}

TEST(DensePlacement, AModelThatFitsGivesWayAndComesBack) {
  const test::TempDir dir;
  test::TinyModel tiny;
  tiny.architecture = "qwen3";
  tiny.n_experts = 0;
  tiny.n_layers = 5;
  tiny.n_embd = 256;
  tiny.n_ff = 1500;
  const auto path = test::write_tiny_model(dir.path(), tiny);
  Model whole = engine::open_model(path, options_with(1u << 30), fixed_process());
  const std::vector<float> expected = logits_of(whole);
  auto free_bytes = std::make_shared<std::uint64_t>(1u << 20);
  engine::Hooks hooks = fixed_process();
  hooks.memory_limits = [free_bytes] {
    platform::MemoryLimits limits;
    limits.total_bytes = 16u << 20;
    limits.available_bytes = *free_bytes;
    return limits;
  };
  Model model = engine::open_model(path, options_with(1u << 30), hooks);
  ASSERT_TRUE(model.plan().fully_resident());
  EXPECT_TRUE(same(logits_of(model), expected));
  EXPECT_EQ(model.stats().streamed_read_bytes, 0u);
  EXPECT_EQ(model.stats().ring_bytes, 0u);
  const std::uint64_t pinned = model.stats().pinned_bytes;

  // While the program waits, and then in the middle of passes.
  *free_bytes = 0;
  model.relieve();
  EXPECT_LT(model.stats().pinned_bytes, pinned);
  EXPECT_TRUE(same(logits_of(model), expected));
  EXPECT_EQ(model.stats().n_blocks_released, model.plan().n_dense_blocks);
  for (int i = 0; i < 3; ++i) model.relieve();
  EXPECT_TRUE(same(logits_of(model), expected));
  EXPECT_GT(model.stats().ring_bytes, 0u);

  *free_bytes = 8u << 20;
  model.relieve();
  EXPECT_EQ(model.stats().n_blocks_returned, 0u) << "nobody needs them while the program waits";
  EXPECT_TRUE(same(logits_of(model), expected));
  EXPECT_EQ(model.stats().pinned_bytes, pinned);
  EXPECT_EQ(model.stats().ring_bytes, 0u);
  const std::uint64_t before = model.stats().streamed_read_bytes;
  EXPECT_TRUE(same(logits_of(model), expected));
  EXPECT_EQ(model.stats().streamed_read_bytes, before) << "what is back is not read";
}

class Draft : public ::testing::Test {
 protected:
  static std::filesystem::path path() { return test::builtin_model("tales-draft-3.7m-Q8_0.gguf"); }
  Draft() : whole_(engine::open_model(path(), options_with(1u << 30), fixed_process())) {}
  Model open_at_floor(const engine::Hooks& hooks) {
    return engine::open_model(path(), options_with(whole_.plan().floor_bytes), hooks);
  }
  /// With room for half of what the floor streams.
  Model open_half_streamed(const engine::Hooks& hooks) {
    const Plan plan = open_at_floor(fixed_process()).plan();
    return engine::open_model(path(), options_with(plan.floor_bytes + plan.dense_streamed_bytes / 2), hooks);
  }
  Model whole_;
};

TEST_F(Draft, AMisbehavingDriveGivesTheSameBits) {
  const std::vector<float> expected = logits_of(whole_);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    engine::Hooks hooks = fixed_process();
    hooks.wrap_backend = [seed](std::unique_ptr<storage::Backend> inner) {
      storage::FaultPlan faults;
      faults.seed = seed;
      faults.short_read_rate = 0.2;
      faults.eintr_rate = 0.1;
      faults.eagain_rate = 0.05;
      faults.delay_rate = 0.3;
      faults.reorder = true;
      faults.full_rate = 0.2;
      return storage::make_fault_backend(std::move(inner), faults);
    };
    Model model = open_at_floor(hooks);
    ASSERT_NE(model.plan().dense_streamed_bytes, 0u);
    EXPECT_TRUE(same(logits_of(model), expected)) << "seed " << seed;
    EXPECT_GT(model.stats().n_read_retries, 0u);
  }
}

TEST_F(Draft, BlocksGiveWayInTheMiddleOfAPassAndComeBack) {
  const std::vector<float> expected = logits_of(whole_);
  auto free_bytes = std::make_shared<std::uint64_t>(1u << 20);
  engine::Hooks hooks = fixed_process();
  hooks.memory_limits = [free_bytes] {
    platform::MemoryLimits limits;
    limits.total_bytes = 16u << 20;
    limits.available_bytes = *free_bytes;
    return limits;
  };
  Model model = open_half_streamed(hooks);
  ASSERT_NE(model.plan().dense_streamed_bytes, 0u);
  const std::uint64_t pinned = model.stats().pinned_bytes;
  *free_bytes = 0;
  EXPECT_TRUE(same(logits_of(model), expected));
  EXPECT_EQ(model.stats().n_blocks_released, model.plan().n_pinned_blocks) << "every look took one or more";
  EXPECT_LT(model.stats().pinned_bytes, pinned);
  *free_bytes = 8u << 20;
  EXPECT_TRUE(same(logits_of(model), expected));
  const Stats stats = model.stats();
  EXPECT_EQ(stats.pinned_bytes, pinned);
  EXPECT_EQ(stats.n_blocks_released, model.plan().n_pinned_blocks);
  EXPECT_EQ(stats.n_blocks_returned, stats.n_blocks_released);
  const std::uint64_t before = stats.streamed_read_bytes;
  logits_of(model);
  const auto n_passes = 21 + 40 / model.plan().prefill_chunk;
  EXPECT_LE(static_cast<double>(model.stats().streamed_read_bytes - before),
            1.2 * static_cast<double>(n_passes * model.plan().dense_streamed_bytes))
      << "what came back is not streamed";
}

TEST_F(Draft, AReadThatFailsWhileABlockComesBackEndsOneStep) {
  std::uint64_t begin = 0, end = 0;
  for (const TensorFact& tensor : inspect(path()).tensors) {
    if (tensor.name != "blk.1.ffn_up.weight") continue;
    begin = tensor.offset + 4096;
    end = tensor.offset + tensor.bytes - 4096;
  }
  auto fails = std::make_shared<bool>(false);
  auto free_bytes = std::make_shared<std::uint64_t>(0);
  engine::Hooks hooks = fixed_process();
  hooks.wrap_backend = [=](std::unique_ptr<storage::Backend> inner) {
    storage::FaultPlan faults;
    faults.failing_ranges.push_back({begin, end, EIO});
    faults.applies_to = [fails](int) { return *fails; };
    return storage::make_fault_backend(std::move(inner), faults);
  };
  hooks.memory_limits = [free_bytes] {
    platform::MemoryLimits limits;
    limits.total_bytes = 16u << 20;
    limits.available_bytes = *free_bytes;
    return limits;
  };
  Model model = open_half_streamed(hooks);
  const std::vector<float> expected = logits_of(whole_);
  EXPECT_TRUE(same(logits_of(model), expected));
  *free_bytes = 8u << 20;
  *fails = true;
  try {
    logits_of(model);
    FAIL() << "the read error was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("blk.1.ffn_up.weight"), std::string::npos) << error.what();
  }
  *fails = false;
  EXPECT_TRUE(same(logits_of(model), expected));
  EXPECT_GT(model.stats().n_blocks_returned, 0u);
}

TEST_F(Draft, EachPassReadsTheStreamedBytesOnce) {
  Model model = open_at_floor(fixed_process());
  Sequence sequence = model.new_sequence();
  const auto tokens = tokens_of(21, model.info().n_vocab);
  logits_of(model, sequence, std::span(tokens).first(1));
  const std::uint64_t before = model.stats().streamed_read_bytes;
  for (std::size_t i = 1; i < tokens.size(); ++i) logits_of(model, sequence, std::span(tokens).subspan(i, 1));
  const auto read = static_cast<double>(model.stats().streamed_read_bytes - before);
  const auto streamed = static_cast<double>(20 * model.plan().dense_streamed_bytes);
  EXPECT_GE(read, streamed);
  // Windows of 4 KiB around chunks, and a row of the embeddings for each token.
  EXPECT_LE(read, streamed * 1.1);
}

TEST_F(Draft, AFailingBlockEndsTheStepWithItsNameAndOffset) {
  std::uint64_t begin = 0, end = 0;
  for (const TensorFact& tensor : inspect(path()).tensors) {
    if (tensor.name != "blk.1.ffn_up.weight") continue;
    begin = tensor.offset + 4096;
    end = tensor.offset + tensor.bytes - 4096;
  }
  ASSERT_LT(begin, end);
  engine::Hooks hooks = fixed_process();
  hooks.wrap_backend = [begin, end](std::unique_ptr<storage::Backend> inner) {
    storage::FaultPlan faults;
    faults.failing_ranges.push_back({begin, end, EIO});
    return storage::make_fault_backend(std::move(inner), faults);
  };
  Model model = open_at_floor(hooks);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      logits_of(model);
      FAIL() << "the read error was not reported";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      const std::string message = error.what();
      EXPECT_NE(message.find("blk.1.ffn_up.weight"), std::string::npos) << message;
      EXPECT_NE(message.find("offset"), std::string::npos) << message;
    }
  }
}

TEST_F(Draft, ACancelledPassLeavesTheNextRight) {
  const auto tokens = tokens_of(30, whole_.info().n_vocab);
  Sequence straight = whole_.new_sequence();
  const std::vector<float> expected = logits_of(whole_, straight, tokens);
  std::atomic<bool> flag{false};
  OpenOptions options = options_with(whole_.plan().floor_bytes);
  options.prefill_chunk = 4;
  Model model = engine::open_model(path(), options, fixed_process());
  model.set_cancel_flag(&flag);
  Sequence sequence = model.new_sequence();
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  EXPECT_THROW(model.step({&item, 1},
                          [&](std::size_t, std::size_t token, std::span<const float>) { flag = token == 7; }),
               Error);
  flag = false;
  EXPECT_EQ(sequence.n_tokens(), 8u);
  const std::vector<float> rest = logits_of(model, sequence, std::span(tokens).subspan(8));
  EXPECT_TRUE(
      same(rest, {expected.begin() + 8 * static_cast<std::ptrdiff_t>(model.info().n_vocab), expected.end()}));
}

}  // namespace
}  // namespace sluice
