// Goal: placement changes speed, never tokens. Method: the logits of a text of 200 tokens on the built-in
// mixture of experts, bit for bit, for budgets from the floor to everything, pass sizes, thread counts,
// storage backends, policies, and a drive that misbehaves. The planner is told a fixed size of the process,
// so that budgets mean the same on every machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

constexpr std::size_t k_n_tokens = 200;
constexpr const char* k_text =
    "Once upon a time, there was a little fox who lived at the edge of a deep green forest. Every morning "
    "the fox went down to "
    "the river to drink, and every morning an old heron stood there on one leg and said nothing at all. One "
    "day the fox asked, "
    "\"Why do you never speak?\" The heron looked at the water for a long time. \"Because,\" it said, \"the "
    "fish are listening.\" "
    "The fox laughed so hard that she fell into the river, and the fish swam away to tell everyone. When she "
    "climbed out, wet and "
    "cold, the heron was gone, and in its place lay a small blue stone. She took it home and put it under "
    "her pillow. That night "
    "she dreamed of a tall tower by the sea, where a girl with a lantern waited for someone who never came. "
    "In the morning the "
    "stone was warm. The fox packed some bread and cheese, said goodbye to the forest, and began to walk "
    "toward the sea.";

struct Case {
  std::string name;
  OpenOptions options;
  engine::Hooks hooks;
};

Case make_case(const std::string& name) {
  Case one{name, {}, {}};
  one.options.n_ctx = 256;
  one.options.n_threads = 2;
  one.hooks.process_bytes = 0;
  return one;
}

auto misbehaving(std::uint64_t seed) {
  return [seed](std::unique_ptr<storage::Backend> inner) {
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
}

Model open(const Case& one) {
  return engine::open_model(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"), one.options, one.hooks);
}

std::vector<TokenId> text_tokens(const Model& model) {
  std::vector<TokenId> tokens = model.tokenizer().encode(k_text);
  EXPECT_GE(tokens.size(), k_n_tokens);
  tokens.resize(k_n_tokens);
  return tokens;
}

/// All logits of the text, computed while the model is as the case says.
std::vector<float> all_logits(const Case& one, Stats* stats = nullptr) {
  Model model = open(one);
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> tokens = text_tokens(model);
  std::vector<float> result;
  result.reserve(k_n_tokens * model.info().n_vocab);
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
    result.insert(result.end(), logits.begin(), logits.end());
  });
  if (stats != nullptr) *stats = model.stats();
  return result;
}

class Placement : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Case one = make_case("resident");
    Stats stats;
    reference_ = all_logits(one, &stats);
    const Model model = open(one);
    ASSERT_TRUE(model.plan().fully_resident());
    ASSERT_EQ(stats.n_misses, 0u);
    floor_ = model.plan().floor_bytes;
    resident_ = model.plan().resident_from_bytes;
  }
  void expect_same(const Case& one, Stats* stats = nullptr) {
    const std::vector<float> logits = all_logits(one, stats);
    ASSERT_EQ(logits.size(), reference_.size()) << one.name;
    EXPECT_EQ(std::memcmp(logits.data(), reference_.data(), logits.size() * sizeof(float)), 0)
        << one.name << ": logits differ from resident";
  }
  static std::uint64_t budget(int percent) {
    return floor_ + (resident_ - floor_) * static_cast<std::uint64_t>(percent) / 100;
  }

  static std::vector<float> reference_;
  static std::uint64_t floor_, resident_;
};
std::vector<float> Placement::reference_;
std::uint64_t Placement::floor_ = 0;
std::uint64_t Placement::resident_ = 0;

TEST_F(Placement, BudgetsDownToTheFloorGiveTheSameBits) {
  std::uint64_t last_misses = 0;
  for (const int percent : {0, 5, 15, 30, 50, 75, 90}) {
    Case one = make_case("budget " + std::to_string(percent) + " %");
    one.options.memory_bytes = budget(percent);
    Stats stats;
    expect_same(one, &stats);
    EXPECT_GT(stats.n_misses, 0u) << one.name << ": nothing was streamed, so nothing was tested";
    if (percent == 0) last_misses = stats.n_misses;
    EXPECT_LE(stats.n_misses, last_misses) << one.name;
  }
}

TEST_F(Placement, SharedTokensGiveTheSameBits) {
  for (const std::size_t n : {std::size_t{64}, std::size_t{100}}) {
    Case one = make_case("sharing " + std::to_string(n));
    one.options.max_sequences = 3;
    one.options.memory_bytes = budget(60);
    Model model = open(one);
    const std::vector<TokenId> tokens = text_tokens(model);
    Sequence first = model.new_sequence(), other = model.new_sequence(), second = model.new_sequence();
    const StepItem all{&first, tokens, LogitsWanted::none};
    model.step({&all, 1}, {});
    ASSERT_EQ(other.share_prefix(first, static_cast<std::uint32_t>(n) + 20), n + 20);
    ASSERT_EQ(second.share_prefix(other, static_cast<std::uint32_t>(n)), n);
    // Another text in the page that the second one shares.
    const StepItem elsewhere{&other, std::span(tokens).first(30), LogitsWanted::none};
    model.step({&elsewhere, 1}, {});
    const std::size_t n_vocab = model.info().n_vocab;
    const StepItem rest{&second, std::span(tokens).subspan(n), LogitsWanted::all};
    model.step({&rest, 1}, [&](std::size_t, std::size_t row, std::span<const float> logits) {
      EXPECT_EQ(std::memcmp(logits.data(), reference_.data() + (n + row) * n_vocab, n_vocab * sizeof(float)),
                0)
          << one.name << ", token " << n + row;
    });
  }
}

/// KL(p | q) of the next token, from logits.
double divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const auto log_sum = [](std::span<const float> logits) {
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - top);
    return top + std::log(sum);
  };
  const double p_sum = log_sum(p_logits), q_sum = log_sum(q_logits);
  double total = 0;
  for (std::size_t i = 0; i < p_logits.size(); ++i)
    total += std::exp(p_logits[i] - p_sum) * ((p_logits[i] - p_sum) - (q_logits[i] - q_sum));
  return total;
}

TEST_F(Placement, KeysAndValuesOf8BitsGiveOneResultCloseToThatOf16) {
  Case one = make_case("q8_0");
  one.options.kv_type = KvType::q8_0;
  const std::vector<float> own = all_logits(one);
  const std::size_t n_vocab = own.size() / k_n_tokens;
  double mean = 0;
  for (std::size_t row = 0; row < k_n_tokens; ++row) {
    mean += divergence(std::span(reference_).subspan(row * n_vocab, n_vocab),
                       std::span(own).subspan(row * n_vocab, n_vocab)) /
            k_n_tokens;
  }
  EXPECT_GT(mean, 0.0) << "nothing was rounded";
  // Other instruction sets alone, which add in another order, give 0.001: a few rows choose other experts.
  EXPECT_LT(mean, 0.01);
  for (const std::uint32_t chunk : {1u, 7u, 200u}) {
    Case other = one;
    other.options.prefill_chunk = chunk;
    other.options.memory_bytes = budget(40) + (chunk == 200 ? 4u << 20 : 0);
    other.options.n_threads = chunk == 7 ? 1 : 2;
    EXPECT_EQ(all_logits(other), own) << "chunk " << chunk;
  }
}

TEST_F(Placement, PassSizesGiveTheSameBits) {
  for (const std::uint32_t chunk : {1u, 7u, 64u, 200u}) {
    for (const int percent : {5, 40}) {
      Case one = make_case("chunk " + std::to_string(chunk) + " at " + std::to_string(percent) + " %");
      one.options.prefill_chunk = chunk;
      one.options.memory_bytes = budget(percent) + (chunk == 200 ? 4u << 20 : 0);
      expect_same(one);
    }
  }
}

TEST_F(Placement, ThreadCountsGiveTheSameBits) {
  for (const int threads : {1, 2, 4}) {
    for (const int percent : {5, 100}) {
      Case one = make_case(std::to_string(threads) + " threads at " + std::to_string(percent) + " %");
      one.options.n_threads = threads;
      one.options.memory_bytes = budget(percent);
      expect_same(one);
    }
  }
}

TEST_F(Placement, StorageBackendsAndPoliciesGiveTheSameBits) {
  for (const IoBackend io : {IoBackend::automatic, IoBackend::pread}) {
    for (const CachePolicy policy : {CachePolicy::lfru, CachePolicy::lru}) {
      Case one = make_case(std::string(io == IoBackend::pread ? "pread" : "automatic") +
                           (policy == CachePolicy::lru ? ", lru" : ", lfru"));
      one.options.io = io;
      one.options.policy = policy;
      one.options.memory_bytes = budget(20);
      one.options.prefill_chunk = 16;
      expect_same(one);
    }
  }
}

TEST_F(Placement, AMisbehavingDriveGivesTheSameBits) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Case one = make_case("faults, seed " + std::to_string(seed));
    one.options.memory_bytes = budget(10);
    one.options.prefill_chunk = seed % 2 == 0 ? 1 : 32;
    one.options.io = seed % 2 == 0 ? IoBackend::pread : IoBackend::automatic;
    one.hooks.wrap_backend = misbehaving(seed);
    Stats stats;
    expect_same(one, &stats);
    EXPECT_GT(stats.n_read_retries, 0u);
  }
}

TEST_F(Placement, DecodingTokenByTokenGivesTheBitsOfPrefill) {
  std::uint64_t n_ahead = 0;
  for (const bool look_ahead : {false, true}) {
    for (const int percent : {5, 10, 60}) {
      for (const bool faults : {false, true}) {
        Case one =
            make_case("token by token, " + std::to_string(percent) + (look_ahead ? " %, look-ahead" : " %"));
        one.options.memory_bytes = budget(percent);
        one.options.look_ahead = look_ahead;
        if (faults) one.hooks.wrap_backend = misbehaving(static_cast<std::uint64_t>(percent));
        Model model = open(one);
        Sequence sequence = model.new_sequence();
        const std::vector<TokenId> tokens = text_tokens(model);
        const std::size_t n_vocab = model.info().n_vocab;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          const StepItem item{&sequence, std::span(tokens).subspan(i, 1), LogitsWanted::last};
          bool same = false;
          model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
            same = std::memcmp(logits.data(), reference_.data() + i * n_vocab, n_vocab * sizeof(float)) == 0;
          });
          ASSERT_TRUE(same) << one.name << ", token " << i;
        }
        const Stats stats = model.stats();
        n_ahead += stats.n_ahead;
        if (!look_ahead) {
          EXPECT_EQ(stats.n_ahead, 0u);
        }
        EXPECT_LE(stats.n_ahead_used + stats.n_ahead_wasted, stats.n_ahead);
      }
    }
  }
  EXPECT_GT(n_ahead, 0u) << "nothing was read ahead, so nothing was tested";
}

TEST_F(Placement, MemoryPressureGivesTheSameBits) {
  Case one = make_case("pressure");
  one.options.memory_bytes = budget(60);
  one.options.prefill_chunk = 8;
  // Every pass finds another state of the machine: plenty, nothing, and all between.
  auto n_looks = std::make_shared<std::uint64_t>(0);
  one.hooks.memory_limits = [n_looks] {
    platform::MemoryLimits limits;
    limits.total_bytes = limits.available_bytes = 64u << 20;
    limits.cgroup_limit_bytes = 64u << 20;
    const std::uint64_t free_mib[] = {10, 0, 0, 0, 2, 9, 0, 0, 30, 0, 1, 40};
    limits.cgroup_unreclaimable_bytes = (64 - free_mib[(*n_looks)++ % std::size(free_mib)]) << 20;
    return limits;
  };
  Stats stats;
  expect_same(one, &stats);
  EXPECT_GE(*n_looks, 20u);
  EXPECT_GT(stats.n_shrinks, 2u);
  EXPECT_GT(stats.n_grows, 1u);
}

TEST_F(Placement, AModelThatFitsGivesWayAndComesBackWithTheSameBits) {
  Case one = make_case("resident under pressure");
  one.options.memory_bytes = budget(100) + (8u << 20);
  one.options.prefill_chunk = 8;
  auto free_mib = std::make_shared<std::uint64_t>(20);
  one.hooks.memory_limits = [free_mib] {
    platform::MemoryLimits limits;
    limits.total_bytes = limits.available_bytes = 64u << 20;
    limits.cgroup_limit_bytes = 64u << 20;
    limits.cgroup_unreclaimable_bytes = (64 - *free_mib) << 20;
    return limits;
  };
  Model model = open(one);
  ASSERT_TRUE(model.plan().fully_resident());
  const std::uint64_t slot_bytes = model.stats().slot_bytes;
  const std::vector<TokenId> tokens = text_tokens(model);
  const auto expect_same_bits = [&] {
    Sequence sequence = model.new_sequence();
    const StepItem item{&sequence, tokens, LogitsWanted::all};
    std::size_t n_different = 0;
    const std::size_t n_vocab = model.info().n_vocab;
    model.step({&item, 1}, [&](std::size_t, std::size_t token, std::span<const float> logits) {
      n_different +=
          std::memcmp(logits.data(), reference_.data() + token * n_vocab, n_vocab * sizeof(float)) != 0;
    });
    EXPECT_EQ(n_different, 0u);
  };
  expect_same_bits();
  EXPECT_EQ(model.stats().n_misses, 0u);

  *free_mib = 0;
  model.relieve();
  EXPECT_EQ(model.stats().n_shrinks, 1u) << "a program that waits gives way";
  EXPECT_LE(model.stats().slot_bytes, slot_bytes - (2u << 20));
  expect_same_bits();
  EXPECT_GT(model.stats().n_misses, 0u);
  EXPECT_LT(model.stats().slot_bytes, slot_bytes / 4);

  *free_mib = 40;
  model.relieve();
  EXPECT_EQ(model.stats().n_grows, 0u);
  expect_same_bits();
  expect_same_bits();
  EXPECT_EQ(model.stats().slot_bytes, slot_bytes);
  const std::uint64_t misses = model.stats().n_misses;
  expect_same_bits();
  EXPECT_EQ(model.stats().n_misses, misses) << "all experts are back";
}

TEST_F(Placement, AHeatFileGivesTheSameBits) {
  const test::TempDir dir;
  for (const int percent : {0, 10, 40, 80, 100}) {
    Case one = make_case("heat at " + std::to_string(percent) + " %");
    one.options.memory_bytes = budget(percent);
    one.options.prefill_chunk = 4;
    one.options.heat = dir / "heat.json";
    {
      Model model = open(one);
      Sequence sequence = model.new_sequence();
      const std::vector<TokenId> tokens = text_tokens(model);
      const StepItem item{&sequence, std::span(tokens).first(50), LogitsWanted::none};
      model.step({&item, 1});
      model.save_heat();
    }
    Stats stats;
    expect_same(one, &stats);
    if (percent == 40 || percent == 80) {
      EXPECT_GT(stats.n_preloaded, 0u) << one.name << ": nothing was read ahead, so nothing was tested";
    }
  }
}

TEST_F(Placement, AFailingExpertEndsTheRunWithItsNameAndOffset) {
  Case one = make_case("EIO");
  one.options.memory_bytes = budget(0);
  // All of one layer's up matrices, but for the blocks at the ends, which neighbouring tensors share.
  std::uint64_t begin = 0, end = 0;
  for (const TensorFact& tensor : inspect(test::builtin_model("tales-29m-moe-Q4_K_M.gguf")).tensors) {
    if (tensor.name != "blk.3.ffn_up_exps.weight") continue;
    begin = tensor.offset + 4096;
    end = tensor.offset + tensor.bytes - 4096;
  }
  ASSERT_LT(begin, end);
  one.hooks.wrap_backend = [begin, end](std::unique_ptr<storage::Backend> inner) {
    storage::FaultPlan faults;
    faults.failing_ranges.push_back({begin, end, EIO});
    return storage::make_fault_backend(std::move(inner), faults);
  };
  try {
    all_logits(one);
    FAIL() << "the read error was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    const std::string message = error.what();
    EXPECT_NE(message.find("blk.3.ffn_up_exps.weight (expert "), std::string::npos) << message;
    EXPECT_NE(message.find("offset"), std::string::npos) << message;
    EXPECT_NE(message.find("tales-29m-moe"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace sluice
