// Goal: whatever happens in whatever order, logits are those of a resident model, counters are true, and
// errors leave the model usable. Method: random lives of tiny models on a simulated machine, each decided by
// its seed. `--seeds FROM COUNT` runs others; `--show SEED` prints what one does.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "simulation/simulation.hpp"

namespace sluice::simulation {
namespace {

char seed_under_way[64];

/// A failed check ends the program: the seed must be known then, too.
void tell_seed(int signal_number) {
  if (write(STDERR_FILENO, seed_under_way, strnlen(seed_under_way, sizeof seed_under_way)) < 0) _exit(1);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

std::string run_seed(std::uint64_t seed, Subjects& subjects, Tally& tally, bool verbose = false) {
  *fmt::format_to_n(seed_under_way, sizeof seed_under_way - 1, "seed {}\n", seed).out = '\0';
  return simulate(seed, subjects, tally, verbose);
}

TEST(Simulation, SeedsFindNothingAndReachEverything) {
  Subjects subjects;
  Tally tally;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const std::string finding = run_seed(seed, subjects, tally);
    ASSERT_EQ(finding, "") << "seed " << seed;
  }
  EXPECT_GT(tally.n_misses, 1000u);
  EXPECT_GT(tally.n_ahead, 100u);
  EXPECT_GT(tally.n_preloaded, 20u);
  EXPECT_GT(tally.n_shrinks, 100u);
  EXPECT_GT(tally.n_blocks_released, 100u);
  EXPECT_GT(tally.n_cancelled, 50u);
  EXPECT_GT(tally.n_io_errors, 50u);
  EXPECT_GT(tally.n_sink_errors, 10u);
  EXPECT_GT(tally.n_failed_opens, 2u);
}

TEST(Simulation, ASeedDecidesEverything) {
  Subjects subjects;
  Tally first, second;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) run_seed(seed, subjects, first);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) run_seed(seed, subjects, second);
  EXPECT_EQ(first.n_tokens, second.n_tokens);
  EXPECT_EQ(first.n_misses, second.n_misses);
  EXPECT_EQ(first.n_ahead, second.n_ahead);
  EXPECT_EQ(first.n_failed_reads, second.n_failed_reads);
}

int run_seeds(std::uint64_t from, std::uint64_t count) {
  const std::uint64_t start = base::now_ns();
  Subjects subjects;
  Tally tally;
  std::uint64_t n_findings = 0;
  for (std::uint64_t seed = from; seed - from < count; ++seed) {
    const std::string finding = run_seed(seed, subjects, tally);
    if (finding.empty()) continue;
    ++n_findings;
    fmt::print("seed {}: {}\n", seed, finding);
  }
  fmt::print("{} seeds from {}: {} findings, {:.1f} s\n", count, from, n_findings,
             static_cast<double>(base::now_ns() - start) * 1e-9);
  fmt::print(
      "{} opens ({} failed), {} steps, {} tokens; {} steps cancelled, {} ended by the drive, {} by the "
      "caller\n",
      tally.n_opens, tally.n_failed_opens, tally.n_steps, tally.n_tokens, tally.n_cancelled,
      tally.n_io_errors, tally.n_sink_errors);
  fmt::print(
      "{} misses, {} looked ahead, {} preloaded, {} shrinks of slots, {} blocks given back, {} reads "
      "failed\n",
      tally.n_misses, tally.n_ahead, tally.n_preloaded, tally.n_shrinks, tally.n_blocks_released,
      tally.n_failed_reads);
  return n_findings == 0 ? 0 : 1;
}

int show_seed(std::uint64_t seed) {
  Subjects subjects;
  Tally tally;
  const std::string finding = run_seed(seed, subjects, tally, true);
  fmt::print("seed {}: {}\n", seed, finding.empty() ? "nothing found" : finding);
  return finding.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::simulation

int main(int argc, char** argv) {
  using namespace sluice::simulation;
  signal(SIGABRT, tell_seed);
  signal(SIGSEGV, tell_seed);
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (argc == 4 && std::string_view(argv[1]) == "--seeds") return run_seeds(number(2), number(3));
  if (argc == 3 && std::string_view(argv[1]) == "--show") return show_seed(number(2));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
