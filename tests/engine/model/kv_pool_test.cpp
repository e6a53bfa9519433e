// Goal: sequences of one pool see their own positions whatever they share, pages never leak, and no sequence
// ever needs a page that the plan does not have. Method: random lives, with a tag written at every position.
#include "engine/model/kv_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "base/random.hpp"
#include "base/thread_pool.hpp"
#include "kernels/cpu_ops.hpp"
#include "residency/kv_plan.hpp"
#include "sluice/options.hpp"

namespace sluice::engine {
namespace {

constexpr std::uint32_t k_page_tokens = kernels::KvShape::page_tokens;
/// One number for each position.
constexpr std::uint64_t k_page_bytes = k_page_tokens * sizeof(std::uint32_t);

/// A pool as a plan makes it, and sequences whose contents are known.
class World {
 public:
  World(std::vector<std::uint32_t> windows, const residency::KvDemand& demand) : demand_(demand) {
    std::vector<model::KvGroup> groups;
    for (const std::uint32_t window : windows) {
      groups.push_back({k_page_bytes, window, 1});
      n_pages_.push_back(
          static_cast<std::uint32_t>(residency::kv_pages({k_page_bytes, window}, k_page_tokens, demand)));
    }
    pool_ = std::make_unique<KvPool>(*ops_, groups, n_pages_);
    n_most_.resize(groups.size(), 0);
    for (std::uint32_t i = 0; i < demand.n_sequences; ++i)
      lives_.push_back({KvSequence(*pool_, demand.n_ctx), {}});
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(lives_.size()); }
  std::uint32_t length(std::uint32_t i) const { return static_cast<std::uint32_t>(lives_[i].tags.size()); }
  std::uint32_t planned(std::size_t group) const { return n_pages_[group]; }
  std::uint32_t most_used(std::size_t group) const { return n_most_[group]; }

  /// One pass that adds n[i] positions to sequence i; false when its pages are not free.
  bool pass(const std::vector<std::uint32_t>& n) {
    for (std::size_t group = 0; group < pool_->n_groups(); ++group) {
      std::uint64_t wanted = 0;
      for (std::uint32_t i = 0; i < size(); ++i) wanted += lives_[i].pages.n_wanted(group, length(i), n[i]);
      if (wanted > pool_->pages(group).n_free()) return false;
    }
    for (std::uint32_t i = 0; i < size(); ++i) {
      if (n[i] != 0) lives_[i].pages.reserve(length(i), length(i) + n[i]);
    }
    for (std::size_t group = 0; group < pool_->n_groups(); ++group)
      n_most_[group] = std::max(n_most_[group], n_used(group));
    for (std::uint32_t i = 0; i < size(); ++i) {
      for (std::uint32_t k = 0; k < n[i]; ++k) {
        for (std::size_t group = 0; group < pool_->n_groups(); ++group)
          std::memcpy(place(i, group, length(i)), &next_tag_, sizeof next_tag_);
        lives_[i].tags.push_back(next_tag_++);
      }
      lives_[i].pages.leave_behind(length(i));
    }
    return true;
  }
  std::uint32_t rewind(std::uint32_t i, std::uint32_t n) {
    const std::uint32_t reached = lives_[i].pages.rewind(n);
    lives_[i].tags.resize(reached);
    return reached;
  }
  std::uint32_t share(std::uint32_t i, std::uint32_t from, std::uint32_t n) {
    const std::uint32_t reached = lives_[i].pages.share(lives_[from].pages, n);
    const std::vector<std::uint32_t>& its = lives_[from].tags;
    lives_[i].tags.assign(its.begin(), its.begin() + reached);
    return reached;
  }

  /// Every position that the next token of a sequence sees holds its tag, and pages have as many users as
  /// there are sequences that hold them.
  void check() {
    for (std::size_t group = 0; group < pool_->n_groups(); ++group) {
      std::map<std::uint32_t, std::uint32_t> users;
      const std::uint32_t window = pool_->window(group);
      for (std::uint32_t i = 0; i < size(); ++i) {
        const kernels::SequenceView view = lives_[i].pages.view();
        for (const std::uint32_t page : view.pages[group]) {
          if (page != kernels::k_no_page) ++users[page];
        }
        const std::uint32_t n = length(i);
        for (std::uint32_t p = window != 0 && n + 1 > window ? n + 1 - window : 0; p < n; ++p) {
          std::uint32_t tag = 0;
          std::memcpy(&tag, place(i, group, p), sizeof tag);
          ASSERT_EQ(tag, lives_[i].tags[p]) << "sequence " << i << " of " << n << " at " << p;
        }
      }
      ASSERT_EQ(users.size(), n_used(group));
      for (const auto& [page, n] : users) ASSERT_EQ(pool_->pages(group).n_users(page), n);
    }
  }
  std::uint32_t n_used(std::size_t group) const {
    return pool_->pages(group).n_pages() - pool_->pages(group).n_free();
  }

 private:
  struct Life {
    KvSequence pages;
    std::vector<std::uint32_t> tags;
  };
  std::byte* place(std::uint32_t i, std::size_t group, std::uint32_t position) const {
    const std::uint32_t page = lives_[i].pages.view().pages[group][position / k_page_tokens];
    return pool_->regions()[group].base + page * k_page_bytes +
           position % k_page_tokens * sizeof(std::uint32_t);
  }

  residency::KvDemand demand_;
  base::ThreadPool threads_{1};
  std::unique_ptr<kernels::Ops> ops_ = kernels::make_cpu_ops(threads_, platform::Isa::scalar);
  std::vector<std::uint32_t> n_pages_, n_most_;
  std::unique_ptr<KvPool> pool_;
  std::vector<Life> lives_;
  std::uint32_t next_tag_ = 1;
};

TEST(KvPool, TenThousandOperationsNeitherLeakNorMixPages) {
  constexpr std::uint32_t k_n_ctx = 700, k_n_rows = 150;
  World world({0, 100, 1}, {k_n_ctx, 6, 1800, k_n_rows});
  base::SplitMix64 random(7);
  const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random.below(n)); };
  std::uint32_t n_refused = 0, n_shared = 0, n_short = 0;
  for (int operation = 0; operation < 10'000; ++operation) {
    const std::uint32_t i = below(world.size());
    switch (below(8)) {
      case 0:
        if (world.rewind(i, below(world.length(i) + 1)) == 0) ++n_short;
        break;
      case 1: {
        const std::uint32_t n = world.length(i) - std::min(world.length(i), below(3));
        EXPECT_GE(world.rewind(i, n), 0u);
        break;
      }
      case 2: {
        const std::uint32_t from = below(world.size());
        if (from == i) break;
        world.rewind(i, 0);
        if (world.share(i, from, world.length(from) - below(world.length(from) / 4 + 1)) != 0) ++n_shared;
        break;
      }
      default: {
        std::vector<std::uint32_t> n(world.size(), 0);
        std::uint32_t left = k_n_rows;
        for (std::uint32_t k = below(3) + 1; k > 0; --k) {
          const std::uint32_t j = below(world.size());
          if (n[j] == 0) n[j] = std::min(below(left + 1), k_n_ctx - world.length(j));
          left -= n[j];
        }
        if (!world.pass(n)) ++n_refused;
      }
    }
    if (operation % 7 != 0) continue;
    ASSERT_NO_FATAL_FAILURE(world.check()) << operation;
  }
  EXPECT_GT(n_refused, 100u) << "the pool was never full";
  EXPECT_GT(n_shared, 100u);
  EXPECT_GT(n_short, 100u);
  for (std::uint32_t i = 0; i < world.size(); ++i) world.rewind(i, 0);
  for (std::size_t group = 0; group < 3; ++group) EXPECT_EQ(world.n_used(group), 0u);
}

TEST(KvPool, LongContextsTakeWhatThePlanSaysToThePage) {
  // 32k tokens, every other layer with a window of 128.
  constexpr std::uint32_t k_n_ctx = 32'768, k_n_rows = 512;
  World world({0, 128}, {k_n_ctx, 1, k_n_ctx, k_n_rows});
  EXPECT_EQ(world.planned(0), k_n_ctx / k_page_tokens);
  EXPECT_EQ(world.planned(1), 13u) << "(128 - 1 + 128 rewinds + 512 rows + 62) / 64 + 1";
  base::SplitMix64 random(3);
  while (world.length(0) < k_n_ctx) {
    const auto n = static_cast<std::uint32_t>(random.below(3) == 0 ? random.below(k_n_rows) + 1 : k_n_rows);
    ASSERT_TRUE(world.pass({std::min(n, k_n_ctx - world.length(0))}));
  }
  world.check();
  EXPECT_EQ(world.most_used(0), world.planned(0));
  EXPECT_EQ(world.most_used(1), world.planned(1));
}

TEST(KvPool, GoesBackAsFarAsItPromises) {
  World world({0, 128}, {4096, 2, 8192, 512});
  for (std::uint32_t n : {100u, 512u, 512u, 3u, 61u, 512u}) {
    ASSERT_TRUE(world.pass({n, 0}));
    const std::uint32_t target = world.length(0) - std::min(n, k_max_rewind);
    ASSERT_EQ(world.rewind(0, target), target);
    world.check();
    ASSERT_TRUE(world.pass({n, 0}));
  }
  const std::uint32_t n = world.length(0);
  EXPECT_EQ(world.share(1, 0, n - 1), n - 1);
  EXPECT_EQ(world.rewind(1, 300), 0u) << "what position 300 sees is gone";
  EXPECT_EQ(world.share(1, 0, 300), 0u);
  EXPECT_EQ(world.rewind(0, 0), 0u);
}

TEST(KvPool, FullPagesAreSharedAndAPartialOneIsCopiedWhenWritten) {
  World world({0}, {1000, 2, 2000, 512});
  ASSERT_TRUE(world.pass({200, 0}));
  EXPECT_EQ(world.share(1, 0, 150), 150u);
  EXPECT_EQ(world.n_used(0), 4u);
  ASSERT_TRUE(world.pass({0, 5}));
  EXPECT_EQ(world.n_used(0), 5u) << "page 2 of the second sequence";
  world.check();
  ASSERT_TRUE(world.pass({5, 0}));
  EXPECT_EQ(world.n_used(0), 5u) << "the first has its last page for itself";
  world.check();
  EXPECT_EQ(world.rewind(1, 128), 128u);
  ASSERT_TRUE(world.pass({0, 1}));
  EXPECT_EQ(world.n_used(0), 5u) << "nothing to copy at the start of a page";
}

}  // namespace
}  // namespace sluice::engine
