// Goal: the planner never spends more than the budget, never less than it could, and says what is wrong when
// nothing fits. Method: a pure function, so a sweep over budgets.
#include "residency/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.hpp"
#include "sluice/error.hpp"

namespace sluice::residency {
namespace {

constexpr std::uint64_t k_mib = 1u << 20;

ModelFacts moe_facts() {
  ModelFacts facts;
  facts.pinned_bytes = {{Role::attention, 3 * k_mib}, {Role::token_embedding, 2 * k_mib}};
  facts.alignment_bytes = 4096;
  facts.expert_layers.assign(8, {32, 4, 80 * 1024});
  facts.expert_layers[3].slot_bytes = 96 * 1024;
  facts.kv_groups = {{256 * 1024, 0}};
  facts.kv_page_tokens = 64;
  facts.n_ctx_train = 2048;
  facts.scratch_bytes = [](std::uint32_t n_rows) { return std::uint64_t{n_rows} * 20'000 + 50'000; };
  return facts;
}

MachineFacts machine(std::uint64_t default_budget = 1024 * k_mib) {
  MachineFacts facts;
  facts.default_budget_bytes = default_budget;
  facts.default_budget_source = "available memory";
  facts.process_bytes = 7 * k_mib;
  return facts;
}

OpenOptions budget(std::uint64_t bytes) {
  OpenOptions options;
  options.memory_bytes = bytes;
  options.n_ctx = 512;
  return options;
}

std::uint64_t sum_of_items(const Plan& plan) {
  std::uint64_t sum = 0;
  for (const PlanItem& item : plan.items) sum += item.bytes;
  return sum;
}

TEST(Plan, StaysWithinEveryBudgetAndUsesIt) {
  const ModelFacts facts = moe_facts();
  const std::uint64_t floor = make_plan(facts, machine(), budget(256 * k_mib)).plan.floor_bytes;
  std::uint64_t last_cached = 0;
  std::uint32_t last_chunk = 0;
  for (std::uint64_t bytes = floor; bytes < 64 * k_mib; bytes += 123'457) {
    const Placement placement = make_plan(facts, machine(), budget(bytes));
    const Plan& plan = placement.plan;
    EXPECT_LE(plan.planned_bytes, bytes);
    EXPECT_EQ(plan.planned_bytes, sum_of_items(plan));
    EXPECT_EQ(plan.floor_bytes, floor);
    EXPECT_GE(plan.prefill_chunk, last_chunk) << "a larger budget may not make passes smaller";
    last_chunk = plan.prefill_chunk;
    if (plan.fully_resident()) {
      EXPECT_EQ(plan.n_cached_units, plan.n_units);
      EXPECT_EQ(plan.n_transit_units, 0u);
      EXPECT_TRUE(placement.transit_is_spare) << "so that it can give way";
      continue;
    }
    EXPECT_EQ(placement.n_transit, 6u) << "one token's experts and two";
    EXPECT_EQ(placement.transit_slot_bytes, 96u * 1024);
    EXPECT_LT(bytes - plan.planned_bytes, 96u * 1024) << "less than one slot may stay unused";
    EXPECT_GE(plan.n_cached_units + 8, last_cached)
        << "slots grow with the budget, but for what larger passes take";
    last_cached = std::max(last_cached, plan.n_cached_units);
    const auto [fewest, most] =
        std::minmax_element(placement.slots_per_layer.begin(), placement.slots_per_layer.end());
    EXPECT_LE(*most - *fewest, 2u) << "layers share evenly";
  }
  EXPECT_TRUE(make_plan(facts, machine(), budget(64 * k_mib)).plan.fully_resident());
}

std::uint64_t kv_bytes_of(const Plan& plan) {
  for (const PlanItem& item : plan.items) {
    if (item.what == "KV cache") return item.bytes;
  }
  return 0;
}

TEST(Plan, WindowsKeepWhatTheySeeAndAPass) {
  ModelFacts facts = moe_facts();
  facts.kv_groups = {{100 * 1024, 0}, {100 * 1024, 128}};
  facts.n_ctx_train = 32'768;
  OpenOptions options = budget(512 * k_mib);
  options.n_ctx = 32'768;
  options.prefill_chunk = 512;
  const Placement placement = make_plan(facts, machine(), options);
  EXPECT_EQ(placement.kv_pages, (std::vector<std::uint32_t>{512, 13}));
  EXPECT_EQ(kv_bytes_of(placement.plan), 525u * 100 * 1024);
  options.prefill_chunk = 64;
  options.max_sequences = 2;
  const Placement small = make_plan(facts, machine(), options);
  EXPECT_EQ(small.kv_pages, (std::vector<std::uint32_t>{1024, (2 * (255 + 62) + 64) / 64 + 2}));
  options.n_ctx = 256;
  EXPECT_EQ(make_plan(facts, machine(), options).kv_pages, (std::vector<std::uint32_t>{8, 8}))
      << "never more than whole contexts";
}

TEST(Plan, RecurrentStateIsTakenForEachSequenceWhateverItsLength) {
  ModelFacts facts = moe_facts();
  OpenOptions options = budget(64 * k_mib);
  options.max_sequences = 3;
  const Plan without = make_plan(facts, machine(), options).plan;
  EXPECT_EQ(without.rewind_tokens, k_max_rewind);
  facts.state_bytes = 1'000'000;
  facts.rewind_tokens = 32;
  const Plan with = make_plan(facts, machine(), options).plan;
  EXPECT_EQ(with.floor_bytes, without.floor_bytes + 3'000'000);
  EXPECT_EQ(with.resident_from_bytes, without.resident_from_bytes + 3'000'000);
  EXPECT_EQ(with.rewind_tokens, 32u);
  EXPECT_EQ(with.planned_bytes, sum_of_items(with));
  options.memory_bytes = with.floor_bytes - 1;
  try {
    make_plan(facts, machine(), options);
    FAIL() << "a budget below the floor was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("recurrent state 2.86 MiB"), std::string::npos) << error.what();
  }
}

TEST(Plan, SequencesMayShareFewerTokensThanTheirContexts) {
  const ModelFacts facts = moe_facts();
  OpenOptions options = budget(64 * k_mib);
  options.max_sequences = 4;
  EXPECT_EQ(make_plan(facts, machine(), options).kv_pages.front(), 32u);
  EXPECT_EQ(make_plan(facts, machine(), options).plan.kv_tokens, 2048u);
  options.kv_tokens = 1000;
  const Placement shared = make_plan(facts, machine(), options);
  EXPECT_EQ(shared.kv_pages.front(), 16u + 3) << "each may have a page that is not full";
  EXPECT_EQ(kv_bytes_of(shared.plan), 19u * 256 * 1024);
  EXPECT_EQ(shared.plan.kv_tokens, 1000u);
  options.kv_tokens = 511;
  try {
    make_plan(facts, machine(), options);
    FAIL() << "a cache was accepted that cannot hold one context";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

TEST(Plan, FloorIsExact) {
  const ModelFacts facts = moe_facts();
  const std::uint64_t floor = make_plan(facts, machine(), budget(256 * k_mib)).plan.floor_bytes;
  EXPECT_EQ(make_plan(facts, machine(), budget(floor)).plan.budget_bytes, floor);
  try {
    make_plan(facts, machine(), budget(floor - 1));
    FAIL() << "a budget below the floor was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
    EXPECT_NE(std::string(error.what()).find(std::to_string(floor)), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--memory"), std::string::npos) << error.what();
  }
}

TEST(Plan, ResidentBudgetIsEnough) {
  const ModelFacts facts = moe_facts();
  const std::uint64_t resident = make_plan(facts, machine(), budget(20 * k_mib)).plan.resident_from_bytes;
  // The chunk takes an eighth of the spare room at most, so the stated budget may use smaller passes, never
  // fewer experts.
  EXPECT_TRUE(make_plan(facts, machine(), budget(resident)).plan.fully_resident());
}

TEST(Plan, TakesTheMachinesBudgetWhenNoneIsAsked) {
  const Plan plan = make_plan(moe_facts(), machine(40 * k_mib), {}).plan;
  EXPECT_TRUE(plan.budget_is_default);
  EXPECT_EQ(plan.budget_bytes, 40 * k_mib);
  EXPECT_EQ(plan.budget_source, "available memory");
}

TEST(Plan, ContextNobodyAskedForShrinksWithTheBudget) {
  OpenOptions options;
  options.memory_bytes = 1024 * k_mib;
  EXPECT_EQ(make_plan(moe_facts(), machine(), options).plan.n_ctx, 2048u);
  options.memory_bytes = 18 * k_mib;
  EXPECT_EQ(make_plan(moe_facts(), machine(), options).plan.n_ctx, 512u);
}

TEST(Plan, RefusesAContextBeyondTheModels) {
  OpenOptions options = budget(256 * k_mib);
  options.n_ctx = 4096;
  EXPECT_THROW(make_plan(moe_facts(), machine(), options), Error);
}

TEST(Plan, CountsEverySequence) {
  OpenOptions options = budget(256 * k_mib);
  const Plan one = make_plan(moe_facts(), machine(), options).plan;
  options.max_sequences = 4;
  const Plan four = make_plan(moe_facts(), machine(), options).plan;
  EXPECT_EQ(four.floor_bytes - one.floor_bytes, 3u * (512 / 64) * 256 * 1024);
}

TEST(Plan, DenseModelNeedsItsWeights) {
  ModelFacts facts = moe_facts();
  facts.expert_layers.clear();
  facts.pinned_bytes.emplace_back(Role::dense_ffn, 50 * k_mib);
  const Placement placement = make_plan(facts, machine(), budget(256 * k_mib));
  EXPECT_TRUE(placement.plan.fully_resident());
  EXPECT_EQ(placement.plan.n_units, 0u);
  EXPECT_THROW(make_plan(facts, machine(), budget(40 * k_mib)), Error);
}

/// 16 layers of 1 MiB of attention and 7 MiB of feed-forward, embeddings of 20 MiB.
ModelFacts dense_facts() {
  ModelFacts facts = moe_facts();
  facts.expert_layers.clear();
  facts.pinned_bytes = {{Role::token_embedding, 20 * k_mib},
                        {Role::output_head, 20 * k_mib},
                        {Role::attention, 16 * k_mib},
                        {Role::dense_ffn, 112 * k_mib}};
  for (int i = 0; i < 16; ++i) {
    facts.blocks.push_back({Role::attention, 1 * k_mib});
    facts.blocks.push_back({Role::dense_ffn, 7 * k_mib});
  }
  facts.ring_slot_bytes = 256 * 1024;
  facts.embedding_bytes = 20 * k_mib;
  facts.gather_bytes = [](std::uint32_t n_rows) { return 100'000 + std::uint64_t{n_rows} * 1000; };
  facts.split_bytes = 500'000;
  return facts;
}

TEST(Plan, DenseModelsGiveUpEmbeddingsThenFeedForwardThenAttention) {
  const ModelFacts facts = dense_facts();
  const std::uint64_t floor = make_plan(facts, machine(), budget(256 * k_mib)).plan.floor_bytes;
  EXPECT_LT(floor, 40 * k_mib) << "neither embeddings nor blocks must stay";
  std::uint64_t last_read = 1024 * k_mib;
  bool saw_embedding_only = false, saw_attention = false;
  for (std::uint64_t bytes = floor; bytes < 256 * k_mib; bytes += 543'210) {
    const Placement placement = make_plan(facts, machine(), budget(bytes));
    const Plan& plan = placement.plan;
    EXPECT_LE(plan.planned_bytes, bytes);
    EXPECT_EQ(plan.planned_bytes, sum_of_items(plan));
    // A larger budget may also buy larger passes and a longer ring, but hardly ever less in memory.
    EXPECT_LE(plan.dense_streamed_bytes, last_read + 7 * k_mib) << bytes;
    last_read = std::min(last_read, plan.dense_streamed_bytes);
    EXPECT_EQ(placement.n_ring_slots == 0 || placement.ring_is_spare, plan.dense_streamed_bytes == 0);
    EXPECT_EQ(plan.embedding_streamed_bytes, placement.embedding_on_drive ? facts.embedding_bytes : 0);
    EXPECT_EQ(plan.streamed_bytes, plan.dense_streamed_bytes + plan.embedding_streamed_bytes);
    EXPECT_EQ(plan.n_pinned_blocks == plan.n_dense_blocks, plan.dense_streamed_bytes == 0);
    EXPECT_EQ(plan.ring_bytes, placement.n_ring_slots * facts.ring_slot_bytes);
    if (placement.n_ring_slots != 0) {
      EXPECT_GE(placement.n_ring_slots, k_min_ring_slots);
    }
    if (plan.dense_streamed_bytes != 0) {
      EXPECT_GE(placement.n_ring_slots, k_min_ring_slots);
      EXPECT_TRUE(placement.embedding_on_drive);
      bool some_ffn = false, all_attention = true;
      for (std::size_t i = 0; i < facts.blocks.size(); ++i) {
        some_ffn = some_ffn || (facts.blocks[i].role == Role::dense_ffn && placement.block_is_pinned[i]);
        all_attention =
            all_attention && (facts.blocks[i].role == Role::dense_ffn || placement.block_is_pinned[i]);
      }
      EXPECT_TRUE(all_attention || !some_ffn);
      saw_attention = saw_attention || !all_attention;
    }
    saw_embedding_only =
        saw_embedding_only || (placement.embedding_on_drive && plan.dense_streamed_bytes == 0);
    if (!placement.embedding_on_drive) {
      EXPECT_TRUE(plan.fully_resident());
      EXPECT_GE(plan.prefill_chunk, k_comfort_chunk);
    }
  }
  EXPECT_TRUE(saw_embedding_only);
  EXPECT_TRUE(saw_attention);
  const Placement whole = make_plan(facts, machine(), budget(256 * k_mib));
  EXPECT_TRUE(whole.plan.fully_resident());
  EXPECT_TRUE(whole.ring_is_spare) << "what fits can give way, too";
  EXPECT_THROW(make_plan(facts, machine(), budget(floor - 1)), Error);
}

TEST(Plan, RefusesMoreThanThereIsAndSaysBoth) {
  MachineFacts facts = machine();
  facts.total_bytes = 64 * k_mib;
  facts.total_source = "the memory cgroup /box";
  EXPECT_EQ(make_plan(moe_facts(), facts, budget(64 * k_mib)).plan.budget_bytes, 64 * k_mib);
  try {
    make_plan(moe_facts(), facts, budget(65 * k_mib));
    FAIL() << "more than there is was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
    const std::string message = error.what();
    for (const char* part : {"65.0 MiB", "64.0 MiB", "/box", "--memory 64M"})
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TEST(Plan, AnyModelAndBudgetGiveAPlanWithinItOrARefusal) {
  base::SplitMix64 random(1);
  int n_planned = 0, n_refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    ModelFacts facts;
    facts.pinned_bytes = {{Role::token_embedding, random.below(30 * k_mib)}};
    facts.embedding_bytes = random.below(2) == 0 ? 0 : facts.pinned_bytes[0].second;
    facts.alignment_bytes = random.below(2) * 4096;
    facts.split_bytes = random.below(k_mib);
    facts.bookkeeping_bytes = random.below(k_mib);
    std::uint64_t attention = 0, ffn = 0;
    for (std::uint64_t n = random.below(8); n > 0; --n) {
      const bool is_attention = random.below(2) == 0;
      const std::uint64_t bytes = 1 + random.below(8 * k_mib);
      facts.blocks.push_back({is_attention ? Role::attention : Role::dense_ffn, bytes});
      (is_attention ? attention : ffn) += bytes;
    }
    facts.pinned_bytes.emplace_back(Role::attention, attention);
    facts.pinned_bytes.emplace_back(Role::dense_ffn, ffn);
    facts.ring_slot_bytes = 1 + random.below(k_mib);
    for (std::uint64_t n = random.below(6); n > 0; --n) {
      const auto n_experts = static_cast<std::uint32_t>(1 + random.below(32));
      facts.expert_layers.push_back(
          {n_experts, 1 + static_cast<std::uint32_t>(random.below(n_experts)), 1 + random.below(k_mib)});
    }
    facts.gather_bytes = [](std::uint32_t n_rows) { return 1000 + std::uint64_t{n_rows} * 4096; };
    facts.kv_groups = {{1 + random.below(k_mib), 0}};
    if (i % 2 == 0)
      facts.kv_groups.push_back({facts.kv_groups[0].page_bytes, 1 + static_cast<std::uint32_t>(i % 600)});
    facts.kv_page_tokens = 64;
    facts.n_ctx_train = static_cast<std::uint32_t>(random.below(3000));
    facts.scratch_bytes = [per_row = random.below(2 * k_mib)](std::uint32_t n_rows) {
      return 50'000 + n_rows * per_row;
    };
    OpenOptions options;
    options.n_ctx = static_cast<std::uint32_t>(random.below(2) == 0 ? random.below(6) : random.below(3000));
    options.max_sequences = static_cast<std::uint32_t>(1 + random.below(3));
    if (random.below(3) == 0) options.prefill_chunk = static_cast<std::uint32_t>(1 + random.below(600));
    MachineFacts machine_facts = machine(random.below(300 * k_mib));
    machine_facts.draft_bytes = random.below(2) * random.below(8 * k_mib);
    machine_facts.other_bytes = random.below(2) * random.below(8 * k_mib);
    const auto check = [&](std::uint64_t bytes) {
      options.memory_bytes = bytes;
      const std::uint64_t allowed = bytes == 0 ? machine_facts.default_budget_bytes : bytes;
      try {
        const Plan plan = make_plan(facts, machine_facts, options).plan;
        EXPECT_LE(plan.planned_bytes, allowed) << i;
        EXPECT_GE(plan.planned_bytes, std::min(plan.floor_bytes, allowed) / 2) << i;
        EXPECT_EQ(plan.planned_bytes, sum_of_items(plan)) << i;
        EXPECT_GE(plan.n_ctx, 1u);
        EXPECT_GE(plan.prefill_chunk, 1u);
        EXPECT_LE(plan.prefill_chunk, plan.n_ctx) << i;
        ++n_planned;
        return plan.floor_bytes;
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::budget || error.code() == ErrorCode::invalid_argument);
        ++n_refused;
        return std::uint64_t{0};
      }
    };
    check(0);
    // Just above the floor is where a part that was forgotten shows.
    if (const std::uint64_t floor = check(1024 * k_mib); floor != 0) {
      check(floor);
      check(floor + random.below(200'000));
      check(floor + random.below(100 * k_mib));
    }
  }
  EXPECT_GT(n_planned, 10'000);
  EXPECT_GT(n_refused, 1'000);
}

TEST(Plan, TiedEmbeddingsStay) {
  ModelFacts facts = dense_facts();
  facts.embedding_bytes = 0;
  const Placement placement = make_plan(facts, machine(), budget(100 * k_mib));
  EXPECT_FALSE(placement.embedding_on_drive);
  EXPECT_GT(placement.n_ring_slots, 0u);
}

TEST(Plan, MixturesKeepTheirDensePartBeforeAnyExpert) {
  ModelFacts facts = dense_facts();
  facts.expert_layers.assign(16, {32, 4, 80 * 1024});
  const std::uint64_t floor = make_plan(facts, machine(), budget(512 * k_mib)).plan.floor_bytes;
  bool saw_both = false;
  for (std::uint64_t bytes = floor; bytes < 300 * k_mib; bytes += 1'234'567) {
    const Plan plan = make_plan(facts, machine(), budget(bytes)).plan;
    EXPECT_LE(plan.planned_bytes, bytes);
    if (plan.dense_streamed_bytes != 0) {
      EXPECT_LT(plan.n_cached_units, 7 * k_mib / (80 * 1024) + 2) << "experts get only what no block can use";
      saw_both = true;
    }
  }
  EXPECT_TRUE(saw_both);
}

TEST(Plan, EmbeddingsMakeRoomForExpertsUnlessAllFit) {
  ModelFacts facts = dense_facts();
  facts.blocks.clear();
  facts.expert_layers.assign(16, {32, 4, 800 * 1024});
  EXPECT_TRUE(make_plan(facts, machine(), budget(400 * k_mib)).embedding_on_drive);
  EXPECT_FALSE(make_plan(facts, machine(), budget(1024 * k_mib)).embedding_on_drive);
  facts.embedding_bytes = 1 * k_mib;
  EXPECT_FALSE(make_plan(facts, machine(), budget(400 * k_mib)).embedding_on_drive) << "too little to matter";
}

TEST(Plan, AskedChunkIsKept) {
  OpenOptions options = budget(256 * k_mib);
  options.prefill_chunk = 7;
  EXPECT_EQ(make_plan(moe_facts(), machine(), options).plan.prefill_chunk, 7u);
}

}  // namespace
}  // namespace sluice::residency
