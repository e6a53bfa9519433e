// Goal: a long context takes the memory that the plan says, to the page and to the byte: where layers see
// only a window, where they keep a recurrent state, where they keep one short row of a position. Method: tiny
// models with a context of 32,768 tokens, filled to the last one; the pages that are in use are counted after
// each pass.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

constexpr std::uint32_t k_n_ctx = 32'768, k_chunk = 512;
constexpr std::uint64_t k_page_tokens = kernels::KvShape::page_tokens;

std::uint64_t item_bytes(const Plan& plan, const char* what) {
  std::uint64_t bytes = 0;
  for (const PlanItem& item : plan.items) bytes += item.what == what ? item.bytes : 0;
  return bytes;
}

/// Of each KV group: pages that were in use at once, at most.
std::vector<std::uint32_t> fill(Model& model) {
  engine::KvPool& pool = *ModelAccess::impl(model).kv;
  std::vector<std::uint32_t> most(pool.n_groups(), 0);
  Sequence sequence = model.new_sequence();
  std::vector<TokenId> tokens(k_chunk);
  for (std::uint32_t done = 0; done < k_n_ctx; done += k_chunk) {
    for (std::uint32_t i = 0; i < k_chunk; ++i) tokens[i] = static_cast<TokenId>((done + i) * 37 % 251);
    const StepItem item{&sequence, tokens, LogitsWanted::none};
    model.step({&item, 1}, {});
    for (std::size_t group = 0; group < most.size(); ++group)
      most[group] = std::max(most[group], pool.pages(group).n_pages() - pool.pages(group).n_free());
  }
  EXPECT_EQ(sequence.n_free(), 0u);
  return most;
}

Model open(const test::TempDir& dir, const char* architecture) {
  test::TinyModel tiny = test::tiny_model_of(architecture);
  tiny.n_ctx = k_n_ctx;
  if (tiny.architecture ==
      "deepseek2") {  // Every layer sees everything: as few and small ones as there can be.
    tiny.n_layers = 2;
    tiny.n_heads = 1;
    tiny.n_kv_heads = 1;
  }
  OpenOptions options;
  options.n_ctx = k_n_ctx;
  options.n_threads = 2;
  options.prefill_chunk = k_chunk;
  return Model::open(test::write_tiny_model(dir.path(), tiny), options);
}

/// What is planned is what is allocated.
void expect_planned_bytes(const Model& model, std::uint64_t kv_bytes, std::uint64_t state_bytes) {
  const Stats stats = model.stats();
  EXPECT_EQ(item_bytes(model.plan(), "KV cache"), kv_bytes);
  EXPECT_EQ(stats.kv_bytes, kv_bytes);
  EXPECT_EQ(item_bytes(model.plan(), "recurrent state"), state_bytes);
  EXPECT_EQ(stats.state_bytes, state_bytes);
}

TEST(Context, LayersWithAWindowTakePagesForTheWindowOnly) {
  const test::TempDir dir;
  Model model = open(dir, "gpt-oss");
  // 2 KV heads of 32 elements each for keys and values, in f16. Two of three layers see 13 positions: they
  // keep those, 128 that may be taken back, and the rows of a pass.
  const std::uint64_t page_bytes = k_page_tokens * 2 * 32 * 2 * 2;
  const std::uint64_t n_full = k_n_ctx / k_page_tokens;
  const std::uint64_t n_window = (12 + 128 + k_page_tokens - 2 + k_chunk) / k_page_tokens + 1;
  expect_planned_bytes(model, page_bytes * (n_full + 2 * n_window), 0);
  std::vector<std::uint32_t> most = fill(model);
  ASSERT_EQ(most.size(), 2u);
  std::sort(most.begin(), most.end());
  EXPECT_EQ(most[1], n_full);
  EXPECT_LE(most[0], n_window);
}

TEST(Context, RecurrentLayersKeepOneStateWhateverTheLength) {
  const test::TempDir dir;
  Model model = open(dir, "qwen35moe");
  const engine::KvPool& pool = *ModelAccess::impl(model).kv;
  ASSERT_EQ(pool.n_groups(), 1u);
  EXPECT_EQ(pool.pages(0).n_pages(), k_n_ctx / k_page_tokens);
  const std::uint64_t state_bytes = model.stats().state_bytes;
  EXPECT_GT(state_bytes, 0u);
  expect_planned_bytes(model, model.stats().kv_bytes, state_bytes);
  EXPECT_EQ(fill(model)[0], k_n_ctx / k_page_tokens);
  EXPECT_EQ(model.stats().state_bytes, state_bytes);
}

TEST(Context, LatentLayersKeepOneRowOfAPosition) {
  const test::TempDir dir;
  Model model = open(dir, "deepseek2");
  const engine::KvPool& pool = *ModelAccess::impl(model).kv;
  ASSERT_EQ(pool.n_groups(), 1u);
  const auto& spec = std::get<model::MlaSpec>(ModelAccess::impl(model).prepared->spec().layers[0].mixer);
  const std::uint64_t n_layers = ModelAccess::impl(model).prepared->spec().n_layers();
  expect_planned_bytes(model, std::uint64_t{k_n_ctx} * n_layers * spec.kept_dim() * 2, 0);
  EXPECT_EQ(fill(model)[0], k_n_ctx / k_page_tokens);
}

}  // namespace
}  // namespace sluice
