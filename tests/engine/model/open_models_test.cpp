// Goal: a model that opens counts what other models of the process were promised, from whatever thread they
// came. Method: built-in models beside one another, and many entries from several threads.
#include "engine/model/open_models.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "sluice/sluice.hpp"
#include "support/test_data.hpp"

namespace sluice::engine {
namespace {

using base::k_mib;

OpenOptions with_budget(std::uint64_t bytes) {
  OpenOptions options;
  options.memory_bytes = bytes;
  options.n_ctx = 512;
  options.n_threads = 1;
  return options;
}

Model open(const OpenOptions& options) {
  return Model::open(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"), options);
}

/// Of the table of a plan; 0 when it is not there.
std::uint64_t item_bytes(const Plan& plan, const std::string& what) {
  for (const PlanItem& item : plan.items) {
    if (item.what == what) return item.bytes;
  }
  return 0;
}

TEST(OpenModels, TheSecondCountsWhatTheFirstWasPromised) {
  std::optional<Model> first = open(with_budget(512 * k_mib));
  EXPECT_EQ(item_bytes(first->plan(), "other models"), 0u);
  const std::uint64_t promised = open_models().planned_bytes;
  // Its KV cache is not touched yet, so the resident set does not show it.
  EXPECT_GT(promised, item_bytes(first->plan(), "expert slots") + item_bytes(first->plan(), "KV cache"));
  {
    const Model second = open(with_budget(512 * k_mib));
    EXPECT_EQ(item_bytes(second.plan(), "other models"), promised);
    EXPECT_EQ(open_models().planned_bytes, 2 * promised) << "the second is the same model";
  }
  EXPECT_EQ(open_models().planned_bytes, promised);
  first.reset();
  const Model alone = open(with_budget(512 * k_mib));
  EXPECT_EQ(item_bytes(alone.plan(), "other models"), 0u);
}

TEST(OpenModels, ABudgetThatTheFirstHasTakenIsRefused) {
  const Model first = open(with_budget(512 * k_mib));
  try {
    open(with_budget(first.plan().floor_bytes));
    FAIL() << "a budget for one model held two";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
    EXPECT_NE(std::string(error.what()).find("other open models"), std::string::npos) << error.what();
  }
}

TEST(OpenModels, ADraftIsCountedOnce) {
  OpenOptions options = with_budget(512 * k_mib);
  const Model draft = open(options);
  options.draft = &draft;
  const Model model = open(options);
  EXPECT_EQ(item_bytes(model.plan(), "draft model"), open_models().planned_bytes / 2);
  EXPECT_EQ(item_bytes(model.plan(), "other models"), 0u);
}

TEST(OpenModels, EntriesMayBeMovedAndEndInAnyThread) {
  const ModelMemory before = open_models();
  {
    OpenModel kept({5, 7});
    OpenModel moved = std::move(kept);
    EXPECT_EQ(moved.planned_bytes(), 5u);
    EXPECT_EQ(open_models().planned_bytes, before.planned_bytes + 5);
    EXPECT_EQ(open_models().process_bytes, std::max<std::uint64_t>(before.process_bytes, 7));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([] {
        for (int n = 0; n < 1000; ++n) {
          OpenModel entry({3, 0});
          EXPECT_GE(open_models().planned_bytes, 3u);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(open_models().planned_bytes, before.planned_bytes + 5);
  }
  EXPECT_EQ(open_models().planned_bytes, before.planned_bytes);
}

}  // namespace
}  // namespace sluice::engine
