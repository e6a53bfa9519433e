// Goal: for every architecture, what a token's logits are depends on nothing but the tokens before it: not on
// the pass, the neighbours, a prefix that was shared or taken back, or where the weights are. Method: a tiny
// random model of each, bit for bit against one pass over the whole text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "engine/model/model_impl.hpp"
#include "model/architecture.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

constexpr std::uint32_t k_n_tokens = 150;

std::vector<TokenId> some_tokens(std::uint32_t seed) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 0; i < k_n_tokens; ++i)
    tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7 + seed * 13) % 256));
  return tokens;
}

using Logits = std::vector<std::vector<float>>;

/// Appends the tokens in passes of at most `chunk`, and their logits.
void step(Model& model, Sequence& sequence, std::span<const TokenId> tokens, std::size_t chunk, Logits& all) {
  for (std::size_t done = 0; done < tokens.size(); done += chunk) {
    const StepItem item{&sequence, tokens.subspan(done, std::min(chunk, tokens.size() - done)),
                        LogitsWanted::all};
    model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
      all.emplace_back(logits.begin(), logits.end());
    });
  }
}

void expect_same(const Logits& got, const Logits& expected, std::size_t first, const std::string& what) {
  ASSERT_EQ(got.size() + first, expected.size()) << what;
  for (std::size_t row = 0; row < got.size(); ++row) {
    ASSERT_EQ(std::memcmp(got[row].data(), expected[first + row].data(), got[row].size() * sizeof(float)), 0)
        << what << ": position " << first + row;
  }
}

class Architectures : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    path_ = test::write_tiny_model(dir_.path(), test::tiny_model_of(GetParam()));
    Model model = open(0);
    Sequence sequence = model.new_sequence();
    step(model, sequence, tokens_, k_n_tokens, expected_);
  }
  Model open(std::uint64_t memory_bytes, KvType kv_type = KvType::f16, std::uint32_t n_sequences = 1) {
    OpenOptions options;
    options.n_ctx = 256;
    options.n_threads = 2;
    options.max_sequences = n_sequences;
    options.memory_bytes = memory_bytes;
    options.kv_type = kv_type;
    engine::Hooks hooks;
    hooks.process_bytes = 0;
    return engine::open_model(path_, options, hooks);
  }
  /// Goes back to at most `n` tokens, as far as the model can, and feeds the rest again.
  void rewind_and_step(Model& model, Sequence& sequence, std::uint32_t n, const std::string& what) {
    const std::uint32_t reached = sequence.rewind(n);
    ASSERT_LE(reached, n) << what;
    Logits again;
    step(model, sequence, std::span(tokens_).subspan(reached), 9, again);
    expect_same(again, expected_, reached, what);
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  std::vector<TokenId> tokens_ = some_tokens(0);
  Logits expected_;
};

TEST_P(Architectures, PassesOfAnySizeGiveTheSameBits) {
  for (const std::size_t chunk : {1u, 3u, 64u, 149u}) {
    Model model = open(0);
    Sequence sequence = model.new_sequence();
    Logits all;
    step(model, sequence, tokens_, chunk, all);
    expect_same(all, expected_, 0, "passes of " + std::to_string(chunk));
  }
}

TEST_P(Architectures, LittleMemoryGivesTheSameBits) {
  const Plan whole = open(1u << 30).plan();
  ASSERT_TRUE(whole.fully_resident());
  bool has_streamed = false;
  for (const std::uint64_t percent : {0u, 20u, 60u}) {
    Model model = open(whole.floor_bytes + (whole.resident_from_bytes - whole.floor_bytes) * percent / 100);
    has_streamed |= !model.plan().fully_resident();
    Sequence sequence = model.new_sequence();
    Logits all;
    step(model, sequence, tokens_, percent == 20 ? 7 : 100, all);
    expect_same(all, expected_, 0, "budget " + std::to_string(percent) + " %");
  }
  EXPECT_TRUE(has_streamed) << "nothing was streamed, so nothing was tested";
}

TEST_P(Architectures, TakingTokensBackGivesTheSameBits) {
  Model model = open(0);
  Sequence sequence = model.new_sequence();
  Logits all;
  step(model, sequence, tokens_, 40, all);
  // A few tokens, as guesses that were wrong; a page; nearly all.
  for (const std::uint32_t n : {149u, 145u, 130u, 63u, 5u, 0u})
    rewind_and_step(model, sequence, n, "back to " + std::to_string(n));
}

TEST_P(Architectures, SharedTokensGiveTheSameBits) {
  Model model = open(0, KvType::f16, 2);
  Sequence first = model.new_sequence();
  Logits all;
  step(model, first, tokens_, 40, all);
  for (const std::uint32_t n : {150u, 100u, 64u, 3u}) {
    Sequence second = model.new_sequence();
    const std::uint32_t reached = second.share_prefix(first, n);
    ASSERT_LE(reached, n);
    Logits rest;
    if (reached < k_n_tokens) step(model, second, std::span(tokens_).subspan(reached), 11, rest);
    expect_same(rest, expected_, reached, "sharing " + std::to_string(n));
  }
  rewind_and_step(model, first, 140, "after sharing");
}

TEST_P(Architectures, NeighboursInAPassChangeNoBit) {
  Model model = open(0, KvType::f16, 3);
  std::vector<Sequence> sequences;
  std::vector<std::vector<TokenId>> texts;
  for (std::uint32_t i = 0; i < 3; ++i) {
    sequences.push_back(model.new_sequence());
    texts.push_back(some_tokens(i));
  }
  Logits got;
  std::size_t done[3] = {0, 0, 0};
  for (std::uint32_t round = 0; done[0] < k_n_tokens; ++round) {
    std::vector<StepItem> items;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::size_t n = std::min<std::size_t>(1 + (round * 5 + i * 3) % 8, k_n_tokens - done[i]);
      if (n == 0) continue;
      items.push_back({&sequences[i], std::span(texts[i]).subspan(done[i], n), LogitsWanted::all});
      done[i] += n;
    }
    model.step(items, [&](std::size_t item, std::size_t, std::span<const float> logits) {
      if (items[item].sequence == &sequences[0]) got.emplace_back(logits.begin(), logits.end());
    });
  }
  expect_same(got, expected_, 0, "beside others");
}

TEST_P(Architectures, KeysOf8BitsDoNotDependOnPasses) {
  Logits once, in_parts;
  for (Logits* all : {&once, &in_parts}) {
    Model model = open(0, KvType::q8_0);
    Sequence sequence = model.new_sequence();
    step(model, sequence, tokens_, all == &once ? k_n_tokens : 13, *all);
  }
  expect_same(in_parts, once, 0, "passes of 13");
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const model::Architecture& architecture : model::known_architectures())
    names.emplace_back(architecture.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Architectures, ::testing::ValuesIn(all_names()), [](const auto& tested) {
  std::string name = tested.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace sluice
