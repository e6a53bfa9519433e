// Goal: a sequence's recurrent state is that of its tokens whatever passes made it, failed, were taken back
// or shared. Method: random lives of a state that is a hash of all rows so far, over real slots and logs.
#include "engine/model/state_pool.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/random.hpp"
#include "base/thread_pool.hpp"
#include "kernels/cpu_ops.hpp"

namespace sluice::engine {
namespace {

using model::k_state_log_rows;

constexpr std::uint64_t k_row_bytes = sizeof(std::uint64_t);

/// The state behind one more row; depends on the order.
std::uint64_t next_state(std::uint64_t state, std::uint64_t row) {
  return (state ^ row) * 0x9e3779b97f4a7c15u + 1;
}

std::uint64_t load(const std::byte* at) {
  std::uint64_t value = 0;
  if (at != nullptr) std::memcpy(&value, at, sizeof value);
  return value;
}

void store(std::byte* at, std::uint64_t value) {
  std::memcpy(at, &value, sizeof value);
}

class World {
 public:
  explicit World(std::uint32_t n_sequences) {
    const model::StateNeed need{64, k_row_bytes};
    pool_ = std::make_unique<StatePool>(*ops_, model::plan_state({&need, 1}), n_sequences);
    pool_->set_replay([this](const kernels::StateSlots& slots, std::uint32_t n_rows) {
      ++n_replays;
      std::uint64_t state = load(slots.from);
      for (std::uint32_t row = 0; row < n_rows; ++row)
        state = next_state(state, load(slots.log + (slots.log_row + row) * k_row_bytes));
      store(slots.to, state);
    });
    for (std::uint32_t i = 0; i < n_sequences; ++i)
      lives_.push_back({std::make_unique<StateSequence>(*pool_), {}});
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(lives_.size()); }
  std::uint32_t length(std::uint32_t i) const { return static_cast<std::uint32_t>(lives_[i].rows.size()); }

  /// A pass of n rows; when it fails, some of what it would write is written.
  void pass(std::uint32_t i, std::uint32_t n, bool fails) {
    Life& life = lives_[i];
    const kernels::StateSlots slots = life.state->begin_pass(n);
    std::uint64_t state = load(slots.from);
    EXPECT_EQ(state, expected(life)) << "before a pass of " << n;
    std::vector<std::uint64_t> rows = life.rows;
    for (std::uint32_t row = 0; row < n; ++row) {
      rows.push_back(random_.next());
      state = next_state(state, rows.back());
      if (slots.log != nullptr) store(slots.log + (slots.log_row + row) * k_row_bytes, rows.back());
      store(slots.to, state);
    }
    EXPECT_EQ(slots.log != nullptr, n <= k_state_log_rows);
    if (fails) {
      life.state->rewind(length(i));
    } else {
      life.state->commit();
      life.rows = std::move(rows);
    }
  }

  std::uint32_t rewind(std::uint32_t i, std::uint32_t n) {
    Life& life = lives_[i];
    const std::uint32_t reached = life.state->reachable(n);
    EXPECT_LE(reached, n);
    life.state->rewind(reached);
    life.rows.resize(reached);
    return reached;
  }

  std::uint32_t share(std::uint32_t to, std::uint32_t from, std::uint32_t n) {
    rewind(to, 0);
    const std::uint32_t reached = lives_[from].state->reachable(n);
    lives_[to].state->share(*lives_[from].state, reached);
    lives_[to].rows.assign(lives_[from].rows.begin(), lives_[from].rows.begin() + reached);
    return reached;
  }

  std::size_t n_replays = 0;

 private:
  struct Life {
    std::unique_ptr<StateSequence> state;
    std::vector<std::uint64_t> rows;
  };
  static std::uint64_t expected(const Life& life) {
    std::uint64_t state = 0;
    for (const std::uint64_t row : life.rows) state = next_state(state, row);
    return state;
  }

  base::ThreadPool threads_{1};
  std::unique_ptr<kernels::Ops> ops_ = kernels::make_cpu_ops(threads_, platform::Isa::scalar);
  std::unique_ptr<StatePool> pool_;
  base::SplitMix64 random_{3};
  std::vector<Life> lives_;
};

TEST(StatePool, LivesKeepTheStatesOfTheirRows) {
  World world(3);
  base::SplitMix64 random(11);
  for (int round = 0; round < 20'000; ++round) {
    const auto i = static_cast<std::uint32_t>(random.below(world.size()));
    const std::uint64_t what = random.below(10);
    if (what < 6) {
      const bool is_large = random.below(8) == 0;
      world.pass(i, static_cast<std::uint32_t>(1 + random.below(is_large ? 100 : 6)), random.below(5) == 0);
    } else if (what < 9) {
      const std::uint32_t back = static_cast<std::uint32_t>(random.below(12));
      world.rewind(i, world.length(i) - std::min(back, world.length(i)));
    } else {
      const std::uint32_t from = (i + 1) % world.size();
      const std::uint32_t back = static_cast<std::uint32_t>(random.below(12));
      world.share(i, from, world.length(from) - std::min(back, world.length(from)));
    }
  }
  EXPECT_GT(world.n_replays, 1000u);
}

TEST(StatePool, APassOfSomeRowsCanBeTakenBackRowByRow) {
  World world(1);
  world.pass(0, 100, false);
  world.pass(0, k_state_log_rows, false);
  for (std::uint32_t n = 100 + k_state_log_rows; n > 100; --n) EXPECT_EQ(world.rewind(0, n - 1), n - 1);
  world.pass(0, 1, false);
  EXPECT_EQ(world.rewind(0, 99), 0u) << "nothing is kept of the states before";
}

TEST(StatePool, OfALongPassTheBeginningIsKept) {
  World world(1);
  world.pass(0, 10, false);
  world.pass(0, k_state_log_rows + 1, false);
  EXPECT_EQ(world.rewind(0, 20), 10u);
  world.pass(0, 3, false);
  EXPECT_EQ(world.rewind(0, 12), 12u);
}

TEST(StatePool, SingleRowsAfterALongPassCanBeTakenBack) {
  World world(1);
  world.pass(0, 300, false);
  for (int i = 0; i < 5; ++i) world.pass(0, 1, false);
  EXPECT_EQ(world.rewind(0, 302), 302u);
  EXPECT_EQ(world.rewind(0, 300), 300u);
}

TEST(StatePool, AModelWithoutStateReachesEverything) {
  base::ThreadPool threads(1);
  const auto ops = kernels::make_cpu_ops(threads, platform::Isa::scalar);
  StatePool pool(*ops, model::plan_state({}), 1);
  EXPECT_EQ(pool.bytes(), 0u);
  StateSequence sequence(pool);
  EXPECT_EQ(sequence.begin_pass(5).to, nullptr);
  sequence.commit();
  EXPECT_EQ(sequence.reachable(3), 3u);
  sequence.rewind(3);
}

}  // namespace
}  // namespace sluice::engine
