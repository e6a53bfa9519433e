#include "cli/bench.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <numeric>
#include <span>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "cli/opening.hpp"
#include "cli/outlook.hpp"
#include "cli/profile.hpp"

namespace sluice::cli {
namespace {

/// What is to be measured, before it is.
std::vector<BenchTest> list_tests(const BenchCommand& command) {
  constexpr std::size_t k_max_tests = 256;
  std::vector<BenchTest> tests;
  for (const std::uint32_t depth : command.depths) {
    const std::string suffix = depth == 0 ? "" : fmt::format(" @ d{}", depth);
    const auto add = [&](const char* kind, bool is_prefill, std::uint32_t n_tokens) {
      if (n_tokens == 0) return;
      BenchTest test;
      test.name = fmt::format("{}{}{}", kind, n_tokens, suffix);
      test.is_prefill = is_prefill;
      test.n_tokens = n_tokens;
      test.depth = depth;
      tests.push_back(std::move(test));
    };
    for (const std::uint32_t n_tokens : command.prompt_tokens) add("pp", true, n_tokens);
    add("tg", false, command.n_generate);
  }
  if (tests.empty())
    throw UsageError("there is nothing to measure: both --prompt-tokens and --generate are 0");
  if (tests.size() > k_max_tests)
    throw UsageError(fmt::format("{} tests were asked for; expected at most {}", tests.size(), k_max_tests));
  return tests;
}

/// The context that holds every test. The options' limits keep the sum far from overflow.
std::uint32_t context_for(const BenchCommand& command, const std::vector<BenchTest>& tests) {
  std::uint32_t needed = 0;
  for (const BenchTest& test : tests) needed = std::max(needed, test.depth + test.n_tokens);
  if (command.open.n_ctx != 0 && command.open.n_ctx < needed) {
    throw UsageError(
        fmt::format("--ctx {} is too small for the tests, which need {}; leave it out or give more",
                    command.open.n_ctx, needed));
  }
  return command.open.n_ctx != 0 ? command.open.n_ctx : needed;
}

/// Fixed tokens without a pattern: the `index`-th of stream `stream` (a draw of SplitMix64). Text would do as
/// well, but a model without a vocabulary cannot read any.
TokenId token_of(std::uint64_t stream, std::uint64_t index, std::uint32_t n_vocab) {
  return static_cast<TokenId>(base::SplitMix64((stream << 32) + index).below(n_vocab));
}

void fill_tokens(std::vector<TokenId>& tokens, std::uint32_t n, std::uint64_t stream, std::uint32_t n_vocab) {
  tokens.resize(n);
  for (std::uint32_t i = 0; i < n; ++i) tokens[i] = token_of(stream, i, n_vocab);
}

/// Adds what was counted between two moments.
void add_counters(BenchTest& test, const Stats& before, const Stats& after) {
  test.weight_bytes += after.weight_bytes - before.weight_bytes;
  test.streamed_read_bytes += after.streamed_read_bytes - before.streamed_read_bytes;
  test.io_busy_ns += after.io_busy_ns - before.io_busy_ns;
  test.stall_ns += after.stall_ns - before.stall_ns;
  test.n_hits += after.n_hits - before.n_hits;
  test.n_joins += after.n_joins - before.n_joins;
  test.n_misses += after.n_misses - before.n_misses;
  test.n_ahead += after.n_ahead - before.n_ahead;
  test.n_ahead_used += after.n_ahead_used - before.n_ahead_used;
}

/// One model and the one sequence that all tests use.
class Bench {
 public:
  Bench(Model& model, const BenchCommand& command)
      : model_(model), sequence_(model.new_sequence()), command_(command) {}

  void measure(BenchTest& test) {
    set_depth(test.depth);
    // Other tokens in each repetition, as a longer text would have: repeating one text would find its experts
    // in the cache.
    for (std::uint32_t i = 0; i < command_.n_warmup; ++i) run_once(test, k_warmup_stream + i);
    const Stats before = model_.stats();
    for (std::uint32_t i = 0; i < command_.n_repetitions; ++i) {
      const std::uint64_t ns = std::max<std::uint64_t>(run_once(test, k_test_stream + i), 1);
      test.elapsed_ns += ns;
      test.rates.push_back(test.n_tokens * 1e9 / static_cast<double>(ns));
    }
    add_counters(test, before, model_.stats());
    print_error_text(
        fmt::format("{}: {:.2f} tok/s, {} repetitions\n", test.name, test.median(), test.rates.size()));
  }

 private:
  static constexpr std::uint64_t k_depth_stream = 1, k_warmup_stream = 1u << 16, k_test_stream = 1u << 24;

  void step(std::span<const TokenId> tokens, LogitsWanted logits) {
    const StepItem item{&sequence_, tokens, logits};
    model_.step({&item, 1}, no_sampling_);
  }

  void set_depth(std::uint32_t depth) {
    if (sequence_.n_tokens() > depth) sequence_.rewind(depth);
    if (sequence_.n_tokens() == depth) return;
    fill_tokens(tokens_, depth, k_depth_stream, model_.info().n_vocab);
    step(std::span<const TokenId>(tokens_).subspan(sequence_.n_tokens()), LogitsWanted::none);
  }

  /// Returns nanoseconds. Leaves the sequence as it was.
  std::uint64_t run_once(const BenchTest& test, std::uint64_t stream) {
    fill_tokens(tokens_, test.n_tokens, stream, model_.info().n_vocab);
    const std::span<const TokenId> tokens(tokens_);
    const std::uint64_t start = base::now_ns();
    if (test.is_prefill) {
      step(tokens, LogitsWanted::last);
    } else {
      for (std::size_t i = 0; i < tokens.size(); ++i) step(tokens.subspan(i, 1), LogitsWanted::last);
    }
    const std::uint64_t ns = base::now_ns() - start;
    set_depth(test.depth);
    return ns;
  }

  Model& model_;
  Sequence sequence_;
  const BenchCommand& command_;
  std::vector<TokenId> tokens_;
  /// Logits are computed, as for a text, and left alone.
  LogitsSink no_sampling_ = [](std::size_t, std::size_t, std::span<const float>) {};
};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

void predict_tests(const WorkFacts& work, const SpeedRates& rates, bool look_ahead, BenchReport& report) {
  if (!rates.knows_machine() || !(report.plan.fully_resident() || rates.knows_drive())) return;
  for (BenchTest& test : report.tests) {
    Workload workload;
    workload.n_prompt = test.is_prefill ? test.n_tokens : 0;
    workload.n_answer = test.is_prefill ? 0 : test.n_tokens;
    workload.depth = test.depth;
    workload.look_ahead = look_ahead;
    workload.routing = Routing::uniform;
    const auto predicted = [&] {
      const Prediction prediction = predict(work, report.plan, rates, workload);
      return test.is_prefill ? prediction.prefill : prediction.decode;
    };
    BenchPrediction& prediction = test.prediction.emplace();
    prediction.even = predicted();
    workload.hit_rate = test.hit_rate();
    prediction.at_hit_rate = predicted();
  }
}

/// Opens the model, measures and closes it.
void run_tests(const std::filesystem::path& path, const BenchCommand& command, const OpenOptions& options,
               BenchReport& report) {
  // Before the model is opened: it reads the header once more.
  const SpeedRates rates = kept_rates(path, options);
  Model model = open_with_progress(path, options);
  Bench bench(model, command);
  for (BenchTest& test : report.tests) bench.measure(test);
  report.info = model.info();
  report.plan = model.plan();
  report.stats = profiled_stats(model, options.io);
  predict_tests(model.work(), rates, options.look_ahead, report);
}

}  // namespace

double BenchTest::median() const {
  if (rates.empty()) return 0;
  std::vector<double> sorted = rates;
  std::sort(sorted.begin(), sorted.end());
  return std::midpoint(sorted[(sorted.size() - 1) / 2], sorted[sorted.size() / 2]);
}

double BenchTest::min() const {
  return rates.empty() ? 0 : *std::min_element(rates.begin(), rates.end());
}
double BenchTest::max() const {
  return rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end());
}
double BenchTest::spread() const {
  return rates.empty() ? 0 : (max() - min()) / median();
}
double BenchTest::ms_per_token() const {
  return rates.empty() ? 0 : 1000 / median();
}

double BenchTest::weight_bytes_per_token() const {
  return rates.empty() ? 0 : static_cast<double>(weight_bytes) / n_tokens / static_cast<double>(rates.size());
}
double BenchTest::memory_rate() const {
  return weight_bytes_per_token() * median();
}
double BenchTest::drive_bytes_per_token() const {
  return rates.empty()
             ? 0
             : static_cast<double>(streamed_read_bytes) / n_tokens / static_cast<double>(rates.size());
}
double BenchTest::drive_rate() const {
  return io_busy_ns == 0 ? 0
                         : static_cast<double>(streamed_read_bytes) * 1e9 / static_cast<double>(io_busy_ns);
}
double BenchTest::hit_rate() const {
  const std::uint64_t n_wanted = n_hits + n_joins + n_misses + n_ahead_used;
  return n_wanted == 0 ? 1 : static_cast<double>(n_hits) / static_cast<double>(n_wanted);
}
double BenchTest::stall_share() const {
  return elapsed_ns == 0 ? 0 : static_cast<double>(stall_ns) / static_cast<double>(elapsed_ns);
}

double BenchTest::busy_share() const {
  return elapsed_ns == 0 ? 0 : static_cast<double>(io_busy_ns) / static_cast<double>(elapsed_ns);
}

std::optional<double> BenchReport::fraction_of_bound(const BenchTest& test) const {
  if (!rates.beyond_cache || rates.read_bytes_per_second <= 0) return std::nullopt;
  return test.memory_rate() / rates.read_bytes_per_second;
}

int bench(const BenchCommand& command, Output& output) {
  BenchReport report;
  report.tests = list_tests(command);
  report.n_repetitions = command.n_repetitions;
  report.n_warmup = command.n_warmup;
  OpenOptions options = command.open;
  options.n_ctx = context_for(command, report.tests);
  const std::filesystem::path path = find_model(command.model);

  report.date = utc_now();
  report.machine = machine_info();
  // The budget holds for this buffer too.
  const std::uint64_t max_buffer_bytes = options.memory_bytes / 4;
  const MachineRates before = measure_machine(options.n_threads, max_buffer_bytes);
  run_tests(path, command, options, report);
  // Neighbours come and go while the tests run; the better of two moments is nearer to what the machine can
  // do.
  const MachineRates after = measure_machine(options.n_threads, max_buffer_bytes);
  report.rates = after.read_bytes_per_second > before.read_bytes_per_second ? after : before;

  if (command.json) {
    output.write(bench_json(report));
  } else {
    output.print(bench_table(report));
  }
  return exit_status(output);
}

}  // namespace sluice::cli
