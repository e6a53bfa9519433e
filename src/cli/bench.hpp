#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/machine.hpp"
#include "sluice/model.hpp"
#include "sluice/predict.hpp"

namespace sluice::cli {

/// A test whose repetitions differ by more than this share of their median says little.
inline constexpr double k_noisy_spread = 0.05;

/// What was to be expected of a test.
struct BenchPrediction {
  PassPrediction even;         ///< With all experts used alike, as random tokens use about.
  PassPrediction at_hit_rate;  ///< With the hit rate that was measured: what is left is the model of time.
};

/// One kind of work, measured several times.
struct BenchTest {
  std::string name;  ///< "pp512", "tg64", "tg64 @ d1024".
  bool is_prefill = false;
  std::uint32_t n_tokens = 0;  ///< Of one repetition.
  std::uint32_t depth = 0;     ///< Tokens in the context before it.
  std::vector<double> rates;   ///< Tokens per second of each repetition.
  // Sums over all repetitions.
  std::uint64_t elapsed_ns = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t streamed_read_bytes = 0, io_busy_ns = 0, stall_ns = 0;
  std::uint64_t n_hits = 0, n_joins = 0, n_misses = 0;
  std::uint64_t n_ahead = 0,
                n_ahead_used = 0;  ///< Units that look-ahead read, and those that were wanted next.
  std::optional<BenchPrediction> prediction;  ///< When there is a profile of this machine and drive.

  double median() const;  ///< Tokens per second; 0 before the first repetition, as the others.
  double min() const;
  double max() const;
  double spread() const;  ///< (max - min) / median.
  bool noisy() const { return spread() > k_noisy_spread; }
  double ms_per_token() const;
  double weight_bytes_per_token() const;
  double memory_rate() const;  ///< Bytes of weights per second at the median.
  double drive_bytes_per_token() const;
  double drive_rate() const;   ///< Bytes per second while a read was in flight.
  double hit_rate() const;     ///< 1 when no expert was wanted.
  double stall_share() const;  ///< Of the time, waiting for experts.
  double busy_share() const;   ///< Of the time, with a read in flight.
};

struct BenchReport {
  ModelInfo info;
  Plan plan;
  Stats stats;
  MachineInfo machine;
  MachineRates rates;
  std::string date;  ///< UTC, "2026-01-31T12:00:00Z".
  std::uint32_t n_repetitions = 0;
  std::uint32_t n_warmup = 0;
  std::vector<BenchTest> tests;

  /// The share of the machine's measured read rate that the test's weights came at; nothing when that rate
  /// could not be measured beyond the caches.
  std::optional<double> fraction_of_bound(const BenchTest& test) const;
};

/// The report for people.
std::string bench_table(const BenchReport& report);

}  // namespace sluice::cli
