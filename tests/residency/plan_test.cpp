// Goal: the planner never spends more than the budget, never less than it could, and says what is wrong when
// nothing fits. Method: a pure function, so a sweep over budgets.
#include "residency/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

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
  facts.kv_page_bytes = 256 * 1024;
  facts.kv_page_tokens = 64;
  facts.n_ctx_train = 2048;
  facts.scratch_bytes = [](std::uint32_t n_rows) { return std::uint64_t{n_rows} * 20'000 + 50'000; };
  return facts;
}

MachineFacts machine(std::uint64_t default_budget = 1024 * k_mib) {
  return {default_budget, "available memory", 7 * k_mib};
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
      EXPECT_EQ(placement.n_transit, 0u);
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
  const std::uint64_t resident = make_plan(facts, machine(), budget(20 * k_mib)).plan.resident_bytes;
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

TEST(Plan, AskedChunkIsKept) {
  OpenOptions options = budget(256 * k_mib);
  options.prefill_chunk = 7;
  EXPECT_EQ(make_plan(moe_facts(), machine(), options).plan.prefill_chunk, 7u);
}

}  // namespace
}  // namespace sluice::residency
