// Goal: a model that opens takes no memory that is not there, waits for others to give way, and opens after
// open take turns. Method: systems that say what the test wants, and lock files in a folder of the test.
#include "engine/model/memory_claim.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "engine/model/model_impl.hpp"
#include "engine/model/open_turn.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice::engine {
namespace {

using base::k_mib;

platform::MemoryLimits system_with(std::uint64_t limit_bytes, std::uint64_t free_bytes) {
  platform::MemoryLimits limits;
  limits.total_bytes = limits.available_bytes = 64 * limit_bytes;
  limits.cgroup_limit_bytes = limit_bytes;
  limits.cgroup_unreclaimable_bytes = limit_bytes - free_bytes;
  return limits;
}

TEST(MemoryClaim, LeavesTheMarkAndWhatIsPromised) {
  MemoryClaim claim([] { return system_with(640 * k_mib, 30 * k_mib); }, 0);
  EXPECT_TRUE(claim.may_take(20 * k_mib)) << "the mark is 10 MiB";
  EXPECT_FALSE(claim.may_take(20 * k_mib + 1));
  claim.set_later_bytes(15 * k_mib);
  EXPECT_TRUE(claim.may_take(5 * k_mib));
  EXPECT_FALSE(claim.may_take(5 * k_mib + 1));
}

TEST(MemoryClaim, LeavesMoreWhileOthersTakeMemoryFast) {
  std::uint64_t free_bytes = 300 * k_mib;
  MemoryClaim claim([&] { return system_with(640 * k_mib, free_bytes); }, 0);
  EXPECT_TRUE(claim.may_take(50 * k_mib));
  free_bytes = 250 * k_mib;
  EXPECT_TRUE(claim.may_take(50 * k_mib)) << "what it took itself is not taken by others";
  free_bytes = 170 * k_mib;  // Others took 30 MiB, so 60 MiB stay free.
  EXPECT_FALSE(claim.may_take(110 * k_mib + 1));
  free_bytes = 140 * k_mib;
  EXPECT_TRUE(claim.may_take(80 * k_mib));
}

TEST(MemoryClaim, WhatALookAllowsIsNotAllowedForLong) {
  std::uint64_t free_bytes = 400 * k_mib;
  MemoryClaim claim([&] { return system_with(640 * k_mib, free_bytes); }, 0);
  EXPECT_TRUE(claim.must_take(k_mib));
  free_bytes = 0;
  const std::uint64_t start = base::now_ns();
  while (base::now_ns() - start < 10'000'000) {  // As if pages came slowly.
  }
  EXPECT_FALSE(claim.must_take(k_mib));
}

TEST(MemoryClaim, WhatMustBeThereGoesDownToHalfTheMark) {
  std::uint64_t free_bytes = 100 * k_mib;
  MemoryClaim claim([&] { return system_with(640 * k_mib, free_bytes); }, 0);
  while (claim.must_take(k_mib)) free_bytes -= k_mib;
  EXPECT_EQ(free_bytes, 5 * k_mib);
}

TEST(MemoryClaim, SeveralAtOnceNeverTakeMoreThanThereIs) {
  std::uint64_t free_bytes = 300 * k_mib;
  const auto system = [&] { return system_with(640 * k_mib, free_bytes); };
  // All look before any of them takes.
  std::vector<MemoryClaim> claims(4, MemoryClaim(system, 0));
  for (int i = 0; i < 1000; ++i) {
    std::uint64_t taken = 0;
    for (MemoryClaim& claim : claims) taken += claim.must_take(k_mib) ? k_mib : 0;
    ASSERT_LE(taken, free_bytes);
    free_bytes -= taken;
  }
  EXPECT_LT(free_bytes, 10 * k_mib);
}

TEST(MemoryClaim, WaitsForOthersWhoGiveWay) {
  std::uint64_t free_bytes = 0;
  int n_looks = 0;
  MemoryClaim claim([&] {
    if (++n_looks % 3 == 0) free_bytes += 2 * k_mib;
    return system_with(640 * k_mib, free_bytes);
  });
  EXPECT_TRUE(claim.must_take(k_mib));
  EXPECT_EQ(free_bytes, 6 * k_mib);
}

TEST(MemoryClaim, ASystemThatTellsNothingRefusesNothing) {
  MemoryClaim claim([] { return platform::MemoryLimits(); }, 0);
  EXPECT_TRUE(claim.may_take(k_mib));
  EXPECT_TRUE(claim.must_take(k_mib));
}

TEST(OpenTurn, OneAfterTheOther) {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "turn.lock";
  {
    const OpenTurn first(path, 0);
    EXPECT_TRUE(first.is_held());
    const OpenTurn second(path, 0);
    EXPECT_FALSE(second.is_held()) << "goes on without, rather than wait for ever";
  }
  const OpenTurn third(path, 0);
  EXPECT_TRUE(third.is_held());
}

TEST(OpenTurn, WhereNoLockCanBeHadThereIsNone) {
  const test::TempDir dir;
  EXPECT_FALSE(OpenTurn(dir / "missing" / "turn.lock", 0).is_held());
  std::filesystem::create_symlink(dir / "elsewhere", dir / "link.lock");
  EXPECT_FALSE(OpenTurn(dir / "link.lock", 0).is_held());
  EXPECT_FALSE(std::filesystem::exists(dir / "elsewhere"));
  std::filesystem::create_directory(dir / "folder.lock");
  EXPECT_FALSE(OpenTurn(dir / "folder.lock", 0).is_held());
}

TEST(OpenTurn, GroupsHavePlacesOfTheirOwn) {
  EXPECT_NE(OpenTurn::place("/sys/fs/cgroup/a"), OpenTurn::place("/sys/fs/cgroup/b"));
  EXPECT_EQ(OpenTurn::place("/a/../b").parent_path(), OpenTurn::place("").parent_path());
  EXPECT_LE(OpenTurn::place(std::string(5000, '/')).filename().string().size(), 255u);
}

/// Opens the built-in mixture while the system says what it wants to.
Model open_while(const OpenOptions& options, ReadLimits limits) {
  Hooks hooks;
  hooks.limits_at_open = std::move(limits);
  return open_model(test::builtin_model("tales-29m-moe-Q4_K_M.gguf"), options, hooks);
}

OpenOptions with_budget(std::uint64_t bytes) {
  OpenOptions options;
  options.memory_bytes = bytes;
  options.n_ctx = 512;
  options.n_threads = 1;
  return options;
}

TEST(Opening, ExpertsGetWhatIsThere) {
  // Enough for what must be there, nothing for slots.
  const std::uint64_t before = platform::read_process_memory().rss_bytes;
  Model model = open_while(with_budget(512 * k_mib), [&] {
    const std::uint64_t taken = platform::read_process_memory().rss_bytes;
    const std::uint64_t there = 20 * k_mib;
    return system_with(1024 * k_mib, 16 * k_mib + there - std::min(there, taken - std::min(taken, before)));
  });
  ASSERT_TRUE(model.plan().fully_resident());
  EXPECT_LT(model.stats().n_slots, model.plan().n_units);
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> tokens = model.tokenizer().encode("Once upon a time");
  const StepItem item{&sequence, tokens};
  EXPECT_NO_THROW(model.step({&item, 1}));
}

TEST(Opening, WithoutWhatMustBeThereIsARefusalThatSaysSo) {
  try {
    open_while(with_budget(512 * k_mib), [] { return system_with(1024 * k_mib, k_mib); });
    FAIL() << "opened in memory that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
    EXPECT_NE(std::string(error.what()).find("others have taken"), std::string::npos) << error.what();
  }
}

TEST(Opening, ADefaultBudgetIsPlannedAgainWhenTheMemoryIsGone) {
  // The first look at what must be there finds nothing, as if another had taken all for a moment.
  int n_looks = 0;
  OpenOptions options = with_budget(0);
  Model model =
      open_while(options, [&] { return system_with(1024 * k_mib, ++n_looks == 1 ? 0 : 512 * k_mib); });
  EXPECT_GT(n_looks, 1);
  EXPECT_TRUE(model.plan().budget_is_default);
  EXPECT_GT(model.stats().pinned_bytes, 0u);
}

}  // namespace
}  // namespace sluice::engine
