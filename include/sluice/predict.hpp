#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/plan.hpp"
#include "sluice/profile.hpp"

namespace sluice {

/// Weights of one type that computing reads, and what is multiplied with them for one row.
struct TypeWork {
  std::string type;            ///< "Q4_K".
  std::uint64_t bytes = 0;     ///< As they lie in the file.
  std::uint64_t products = 0;  ///< Multiply-accumulates per row of activations.
};

/// Attention of the layers that see the same tokens.
struct KvWork {
  std::uint32_t window = 0;       ///< They see so many of the last tokens; 0: all.
  std::uint64_t token_bytes = 0;  ///< KV cache of one token in these layers.
  std::uint64_t products = 0;     ///< Multiply-accumulates per row and token that it sees.
};

/// What computing a model takes, by weight type. Follows from the tensors alone; no weight is read for it.
struct WorkFacts {
  std::uint32_t n_layers = 0;
  std::uint32_t n_expert_layers = 0;      ///< 0: dense.
  std::uint32_t n_experts = 0;            ///< Of each of those layers.
  std::uint32_t n_experts_used = 0;       ///< Of those, per token and layer.
  std::vector<TypeWork> always;           ///< Weights of all layers that every token uses.
  std::vector<TypeWork> output;           ///< The output matrix: per decoded token, once per prompt.
  std::vector<TypeWork> expert;           ///< One expert of every layer together.
  std::uint64_t unit_bytes = 0;           ///< What is read for one expert, on average over the layers.
  std::uint64_t part_bytes = 0;           ///< Of that, one matrix: a read, or several when it is larger.
  std::uint64_t embedding_row_bytes = 0;  ///< What is read for a token whose embedding is on the drive.
  std::vector<KvWork> kv;                 ///< Of all layers.
  std::uint64_t state_bytes = 0;          ///< Of a sequence's recurrent layers; a pass reads and writes them.

  /// Bytes of weights that one decoded token uses.
  std::uint64_t bytes_per_token() const noexcept;
};

/// What a machine and a drive deliver, per second. A rate of 0 is unknown.
struct SpeedRates {
  double memory_bytes = 0;          ///< Reading memory in order, all threads.
  std::vector<KernelRate> kernels;  ///< With 1 and with more rows.
  std::vector<ReadRate> random;     ///< Reads of the drive at random places.
  double sequential_bytes = 0;      ///< Large reads of the drive in order.

  bool knows_machine() const noexcept { return memory_bytes > 0 && !kernels.empty(); }
  bool knows_drive() const noexcept { return sequential_bytes > 0 || !random.empty(); }
};

/// What was measured, ready for predict(). Of several drives, shards of one model, the slowest counts.
SpeedRates speed_rates(const Profile& profile);
/// A drive that is said to deliver so many bytes per second, whatever is asked of it.
void set_drive_rate(SpeedRates& rates, double bytes_per_second);

/// Which experts are taken to be used, and so how many are found in a cache that holds a share of them.
enum class Routing {
  uniform,    ///< All alike: as many hits as the share that is cached. The worst case.
  typical,    ///< Half-way between two recorded traces of real models.
  favorable,  ///< As the better of those traces.
};
const char* routing_name(Routing routing) noexcept;

/// The hit rate of decoding, 0 to 1, with `cached_share` of all experts in memory: interpolated between
/// the measured points of docs/performance.md ("Hit curves", lfru).
double expected_hit_rate(Routing routing, double cached_share) noexcept;

/// What earlier runs of a model (OpenOptions::heat) let expect of decoding under a plan.
struct HeatForecast {
  double n_tokens = 0;  ///< Tokens behind it; those of long ago count less.
  double hit_rate = 0;  ///< Of experts, 0 to 1.
};

/// What is to be predicted.
struct Workload {
  std::uint32_t n_prompt = 4096;  ///< Tokens computed in passes of the plan's size; 0: none.
  std::uint32_t n_answer = 300;   ///< Tokens decoded one by one after those; 0: none.
  std::uint32_t depth = 0;        ///< Tokens in the context before all that.
  bool look_ahead = true;
  Routing routing = Routing::typical;
  std::optional<HeatForecast> heat;  ///< Instead of `routing`.
  std::optional<double> hit_rate;    ///< Known, of decoding and of prefill; instead of both.
};

/// The workload cut to a context: the answer gets at most half of it, the prompt what is left.
Workload cut_to_context(Workload workload, std::uint32_t n_ctx) noexcept;

/// What is predicted for one kind of pass. Times in nanoseconds per token; they overlap, so their sum is more
/// than `token_ns`.
struct PassPrediction {
  double tokens_per_second = 0;  ///< 0: there are no such tokens.
  double token_ns = 0;
  double drive_ns = 0;     ///< Reading the drive.
  double memory_ns = 0;    ///< Reading weights and KV cache from memory.
  double compute_ns = 0;   ///< Multiplying, were all operands in the processor's caches.
  double drive_bytes = 0;  ///< Per token.
  double hit_rate = 1;     ///< Of experts, assumed.
  std::string limit;       ///< "drive", "memory" or "compute": the largest of the three.
};

struct Prediction {
  Workload workload;
  PassPrediction prefill, decode;
  double answer_seconds = 0;  ///< Prompt and answer.
};

/// Predicts speed: pure. The model is described in docs/performance.md ("Prediction"). Throws
/// Error(invalid_argument) when a rate is missing that the plan needs: of the machine always, of the drive
/// unless everything stays in memory.
Prediction predict(const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
                   const Workload& workload);

/// The same for all routings, and for workload.heat where there is one.
struct PredictionRange {
  Prediction low, typical, high;
  std::optional<Prediction> heat;

  /// The figure to show: what is known of this model's routing, or else the typical one.
  const Prediction& expected() const noexcept { return heat ? *heat : typical; }
};
PredictionRange predict_range(const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
                              Workload workload);

}  // namespace sluice
