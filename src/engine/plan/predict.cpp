#include "sluice/predict.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "gguf/types.hpp"

// Constants of the model, each with where it comes from. "The tables" are those of docs/performance.md.
namespace sluice {
namespace {

/// How far reading memory and multiplying hide each other in decoding: (m^p + c^p)^(1/p), where 1 is not at
/// all and infinity fully. The products alone, taking turns with plain reading, reach 87 to 103 % of its rate
/// with c/m from 0.4 to 0.5, which is p from 2 upwards.
constexpr double k_decode_overlap = 2.5;
/// What lies between products (norms, rotation, routing, quantizing activations): about 8 % of decoding the
/// 48-layer model, of which the part that grows with the weights is taken as 5 % ...
constexpr double k_between_products = 1.05;
/// ... and the rest as waking threads and small operations of a layer.
constexpr double k_layer_ns = 20'000;
/// Attention reaches this share of the rate of F16 products with as many rows: decoding after 4,096 and 8,192
/// tokens takes the 8-layer model 4.4 and 8.6 ms more than in an empty context, 61 and 63 products per ns
/// where F16 with one row reaches 88; prefill behind 4,096 tokens 120 where F16 with 64 rows reaches 150.
constexpr double k_attention_share = 0.75;
/// Prefill reaches this share of the rate that kernels have in a loop of their own. Llama-3-8B's shape (all
/// weights used by every row): cut to 8 layers 220 to 243 tok/s where the kernels alone would give 270;
/// whole, 57 to 60 where they would give 78.
constexpr double k_prefill_share = 0.8;
/// The same for experts, which have fewer rows each, gathered and scattered: Qwen3-30B-A3B's shape,
/// prefill 128 to 512.
constexpr double k_prefill_expert_share = 0.68;
/// While experts stream, decoding gets this share of the rate that the drive has with as many reads in
/// flight: one layer's reads drain before the next layer's router has spoken. Measured 0.9 to 1, 8-layer
/// 30B-A3B with 22 to 36 % of its experts cached, against rates of reads into a buffer beyond the caches.
constexpr double k_burst_share = 0.95;
/// In prefill the queue is longer.
constexpr double k_sweep_share = 0.9;
/// With look-ahead, this share of the layers' always-used weights is computed while the drive has nothing to
/// do, besides the output matrix: 12 to 23 % of the time (30B-A3B whole and cut to 8 layers).
constexpr double k_idle_share = 0.65;
/// How far the drive and the experts' products hide each other within a layer; the longer of the two counts
/// in each layer, and layers differ, so the sum is above the larger sum.
constexpr double k_drive_overlap = 2;
/// Reads are cut into pieces of this size (storage/read_queue).
constexpr double k_piece_bytes = 512.0 * 1024;
/// No profile has more in flight.
constexpr double k_max_depth = 32;
/// Rows of embeddings that are read at the same time (residency/row_gather).
constexpr double k_gather_depth = 32;
constexpr double k_giga = 1e9;

// --- hit rates
// -------------------------------------------------------------------------------------------------

struct CurvePoint {
  double share, qwen3, olmoe;
};
/// "Hit curves" of docs/performance.md, rows lfru. The tables end at half of the experts; from there straight
/// to 1, where everything is cached.
constexpr std::array<CurvePoint, 11> k_hit_curves{{{0, 0, 0},
                                                   {0.01, 0.122, 0.063},
                                                   {0.03, 0.287, 0.179},
                                                   {0.0625, 0.455, 0.306},
                                                   {0.094, 0.567, 0.395},
                                                   {0.125, 0.651, 0.469},
                                                   {0.1875, 0.768, 0.569},
                                                   {0.25, 0.846, 0.641},
                                                   {0.375, 0.934, 0.751},
                                                   {0.5, 0.969, 0.839},
                                                   {1, 1, 1}}};

double on_curve(const CurvePoint& point, Routing routing) noexcept {
  switch (routing) {
    case Routing::uniform:
      return point.share;
    case Routing::typical:
      return (point.qwen3 + point.olmoe) / 2;
    case Routing::favorable:
      break;
  }
  return point.qwen3;
}

// --- rates
// -----------------------------------------------------------------------------------------------------

/// Products per nanosecond of one type, as the time per product with n rows: unpacking, shared by the rows,
/// and multiplying.
struct KernelTime {
  double unpack_ns = 0, multiply_ns = 0;
  double product_ns(double n_rows) const noexcept { return unpack_ns / n_rows + multiply_ns; }
};

std::optional<KernelTime> measured_time(const std::vector<KernelRate>& kernels, std::string_view type) {
  const KernelRate *few = nullptr, *many = nullptr;
  for (const KernelRate& kernel : kernels) {
    if (kernel.type != type || kernel.n_rows == 0 || !(kernel.products_per_second > 0)) continue;
    if (few == nullptr || kernel.n_rows < few->n_rows) few = &kernel;
    if (many == nullptr || kernel.n_rows > many->n_rows) many = &kernel;
  }
  if (few == nullptr) return std::nullopt;
  const double few_ns = k_giga / few->products_per_second, many_ns = k_giga / many->products_per_second;
  if (many_ns >= few_ns || few->n_rows == many->n_rows) return KernelTime{0, few_ns};
  const double unpack_ns = (few_ns - many_ns) / (1.0 / few->n_rows - 1.0 / many->n_rows);
  return KernelTime{unpack_ns, std::max(many_ns - unpack_ns / many->n_rows, 0.0)};
}

KernelTime kernel_time(const SpeedRates& rates, std::string_view type) {
  if (const auto time = measured_time(rates.kernels, type)) return *time;
  for (const gguf::TypeTraits& traits : gguf::all_types()) {
    if (traits.name != type) continue;
    if (const auto time = measured_time(rates.kernels, gguf::type_name(traits.similar))) return *time;
  }
  // The slowest of all.
  KernelTime slowest;
  for (const KernelRate& kernel : rates.kernels) {
    const auto time = measured_time(rates.kernels, kernel.type);
    if (time && time->product_ns(1) > slowest.product_ns(1)) slowest = *time;
  }
  return slowest;
}

/// Bytes per second of reads of one size with so many in flight: between measured points straight over the
/// logarithms of size and depth; beyond them as at the nearest.
double read_rate(const std::vector<ReadRate>& rates, double block_bytes, double depth) {
  std::vector<std::uint32_t> blocks;
  for (const ReadRate& rate : rates) blocks.push_back(rate.block_bytes);
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  const auto between = [](double x, double x0, double x1, double y0, double y1) {
    if (x <= x0 || x1 <= x0) return y0;
    if (x >= x1) return y1;
    return y0 + (y1 - y0) * std::log(x / x0) / std::log(x1 / x0);
  };
  const auto at_depth = [&](std::uint32_t block) {
    const ReadRate *below = nullptr, *above = nullptr;
    for (const ReadRate& rate : rates) {
      if (rate.block_bytes != block) continue;
      if (rate.depth <= depth && (below == nullptr || rate.depth > below->depth)) below = &rate;
      if (rate.depth >= depth && (above == nullptr || rate.depth < above->depth)) above = &rate;
    }
    if (below == nullptr) below = above;
    if (above == nullptr) above = below;
    return between(depth, below->depth, above->depth, below->bytes_per_second, above->bytes_per_second);
  };
  const auto upper = std::lower_bound(blocks.begin(), blocks.end(), block_bytes);
  const std::uint32_t above = upper == blocks.end() ? blocks.back() : *upper;
  const std::uint32_t below = upper == blocks.begin() ? above : *(upper - 1);
  return between(block_bytes, below, above, at_depth(below), at_depth(above));
}

/// Of a pass that keeps the queue full with large reads. In order and at random places are two looks at the
/// same drive, and their mean is steadier than either.
double sweep_rate(const SpeedRates& rates) {
  if (rates.random.empty()) return rates.sequential_bytes;
  const double random_bytes = read_rate(rates.random, k_piece_bytes, k_max_depth);
  return rates.sequential_bytes > 0 ? (rates.sequential_bytes + random_bytes) / 2 : random_bytes;
}

// --- time
// ------------------------------------------------------------------------------------------------------

double hide(double a, double b, double overlap) noexcept {
  return std::pow(std::pow(a, overlap) + std::pow(b, overlap), 1 / overlap);
}

struct Load {
  double memory_ns = 0, compute_ns = 0;
  double hidden_ns() const noexcept { return hide(memory_ns, compute_ns, k_decode_overlap); }
};

/// Reading `times` copies of the weights once and multiplying `n_rows` rows with each.
Load load_of(const std::vector<TypeWork>& work, const SpeedRates& rates, double times, double n_rows) {
  Load load;
  for (const TypeWork& part : work) {
    load.memory_ns += times * static_cast<double>(part.bytes) * k_giga / rates.memory_bytes;
    if (n_rows > 0) {
      load.compute_ns += times * n_rows * static_cast<double>(part.products) *
                         kernel_time(rates, part.type).product_ns(n_rows);
    }
  }
  return load;
}

/// Attention of one row to `depth` tokens; the keys are read once for `n_rows` rows. And recurrent states.
Load attention_load(const WorkFacts& work, const SpeedRates& rates, double depth, double n_rows) {
  double bytes = 2.0 * static_cast<double>(work.state_bytes), products = 0;
  for (const KvWork& part : work.kv) {
    const double seen = part.window == 0 ? depth : std::min<double>(depth, part.window);
    bytes += seen * static_cast<double>(part.token_bytes);
    products += n_rows * seen * static_cast<double>(part.products);
  }
  return {bytes * k_giga / rates.memory_bytes,
          products * kernel_time(rates, "F16").product_ns(n_rows) / k_attention_share};
}

const char* limit_of(const PassPrediction& pass) noexcept {
  if (pass.drive_ns >= pass.memory_ns && pass.drive_ns >= pass.compute_ns) return "drive";
  return pass.memory_ns >= pass.compute_ns ? "memory" : "compute";
}

double cached_share(const Plan& plan) noexcept {
  return plan.n_units == 0 ? 1.0
                           : static_cast<double>(plan.n_cached_units) / static_cast<double>(plan.n_units);
}

bool experts_stream(const Plan& plan) noexcept {
  return plan.n_cached_units < plan.n_units;
}

/// The hit rate of one token after another.
double decode_hit_rate(const Plan& plan, const Workload& workload) noexcept {
  if (workload.hit_rate) return *workload.hit_rate;
  if (workload.heat) return workload.heat->hit_rate;
  return expected_hit_rate(workload.routing, cached_share(plan));
}

/// Reading the rows of embeddings of a pass, before which nothing can be computed. A row is far smaller than
/// what profiles measure, so one read takes as long as one of their smallest (4 KiB took 69 us where 64 KiB
/// took 83); some go on at the same time, within what the drive delivers. Adds to the pass.
double add_embeddings(PassPrediction& pass, const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
                      double n_rows) {
  if (plan.embedding_streamed_bytes == 0) return 0;
  const double bytes = n_rows * static_cast<double>(work.embedding_row_bytes);
  double drive_ns = bytes * k_giga / sweep_rate(rates);
  if (!rates.random.empty()) {
    const auto smallest =
        std::min_element(rates.random.begin(), rates.random.end(), [](const ReadRate& a, const ReadRate& b) {
          return std::pair(a.block_bytes, a.depth) < std::pair(b.block_bytes, b.depth);
        });
    const double read_ns =
        smallest->block_bytes * k_giga / smallest->bytes_per_second * std::max(smallest->depth, 1u);
    drive_ns = std::max(drive_ns, read_ns * n_rows / std::min(n_rows, k_gather_depth));
  }
  pass.drive_bytes += bytes;
  pass.drive_ns += drive_ns;
  return drive_ns;
}

PassPrediction predict_decode(const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
                              const Workload& workload) {
  PassPrediction pass;
  const double depth = workload.depth + workload.n_prompt + workload.n_answer / 2.0;
  const Load always = load_of(work.always, rates, 1, 1), output = load_of(work.output, rates, 1, 1),
             experts = load_of(work.expert, rates, work.n_experts_used, 1),
             attention = attention_load(work, rates, depth, 1);
  const auto busy = [](const Load& load) { return load.hidden_ns() * k_between_products; };
  const double layers_ns = busy(always) + busy(attention) + work.n_layers * k_layer_ns;
  const double compute_ns = layers_ns + busy(output) + busy(experts);
  pass.memory_ns = always.memory_ns + output.memory_ns + experts.memory_ns + attention.memory_ns;
  pass.compute_ns = always.compute_ns + output.compute_ns + experts.compute_ns + attention.compute_ns;

  // Work during which no read is in flight.
  double idle_ns = 0;
  if (experts_stream(plan)) {
    pass.hit_rate = decode_hit_rate(plan, workload);
    const double misses = work.n_experts_used * (1 - pass.hit_rate);
    const double pieces = std::max(1.0, std::ceil(static_cast<double>(work.part_bytes) / k_piece_bytes));
    const double block = static_cast<double>(work.part_bytes) / pieces;
    // Three matrices of each expert; a layer that reads at all reads one.
    const double in_flight = std::min(k_max_depth, 3 * pieces * std::max(misses, 1.0));
    const double bytes = misses * work.n_expert_layers * static_cast<double>(work.unit_bytes);
    pass.drive_bytes += bytes;
    if (bytes > 0) {
      const double rate =
          rates.random.empty() ? rates.sequential_bytes : read_rate(rates.random, block, in_flight);
      pass.drive_ns += bytes * k_giga / (rate * k_burst_share);
      // Without look-ahead nothing but the layer's own experts is computed during reads, and of those the
      // last to arrive comes too late.
      idle_ns = workload.look_ahead ? busy(output) + k_idle_share * layers_ns : compute_ns;
    }
  }
  if (plan.dense_streamed_bytes != 0) {
    const auto bytes = static_cast<double>(plan.dense_streamed_bytes);
    pass.drive_bytes += bytes;
    pass.drive_ns += bytes * k_giga / sweep_rate(rates);
  }
  pass.token_ns = idle_ns + hide(pass.drive_ns, compute_ns - idle_ns, k_drive_overlap);
  pass.token_ns += add_embeddings(pass, work, plan, rates, 1);
  pass.tokens_per_second = k_giga / pass.token_ns;
  pass.limit = limit_of(pass);
  return pass;
}

/// Distinct experts of a layer that `n_rows` rows use when all are used alike.
double distinct_experts(const WorkFacts& work, double n_rows) noexcept {
  const double n = work.n_experts, used = work.n_experts_used;
  return n == 0 ? 0 : n * (1 - std::pow(1 - used / n, n_rows));
}

/// Adds one pass over `n_rows` tokens of a prompt; times and bytes of the whole pass.
void add_pass(PassPrediction& sum, const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
              const Workload& workload, double position, double n_rows, bool has_output) {
  const Load always = load_of(work.always, rates, 1, n_rows);
  const Load attention = attention_load(work, rates, position + n_rows / 2, n_rows);
  const Load output = has_output ? load_of(work.output, rates, 1, 1) : Load{};
  const double distinct = distinct_experts(work, n_rows);
  const Load experts =
      distinct == 0 ? Load{} : load_of(work.expert, rates, distinct, n_rows * work.n_experts_used / distinct);
  const double shared_ns = hide(always.memory_ns, always.compute_ns / k_prefill_share, k_decode_overlap) +
                           std::max(attention.memory_ns, attention.compute_ns) + output.hidden_ns() +
                           work.n_layers * k_layer_ns;
  // Few rows each: fetching an expert's weights and multiplying hide each other little.
  const double expert_ns = experts.memory_ns + experts.compute_ns / k_prefill_expert_share;
  sum.memory_ns += always.memory_ns + attention.memory_ns + output.memory_ns + experts.memory_ns;
  sum.compute_ns += always.compute_ns + attention.compute_ns + output.compute_ns + experts.compute_ns;

  double expert_drive_ns = 0, dense_drive_ns = 0;
  if (experts_stream(plan) && distinct > 0) {
    // Of a large pass that uses every expert, exactly those that are cached are hits; a small one is like
    // decoding.
    const double share = cached_share(plan), used = work.n_experts_used;
    const double whole = work.n_experts > used ? (distinct - used) / (work.n_experts - used) : 1.0;
    const double hits =
        workload.hit_rate.value_or(whole * share + (1 - whole) * decode_hit_rate(plan, workload));
    const double bytes = distinct * (1 - hits) * work.n_expert_layers * static_cast<double>(work.unit_bytes);
    sum.hit_rate += hits * n_rows;
    sum.drive_bytes += bytes;
    if (bytes > 0) expert_drive_ns = bytes * k_giga / (sweep_rate(rates) * k_sweep_share);
  } else {
    sum.hit_rate += n_rows;
  }
  if (plan.dense_streamed_bytes != 0) {
    const auto bytes = static_cast<double>(plan.dense_streamed_bytes);
    sum.drive_bytes += bytes;
    dense_drive_ns = bytes * k_giga / sweep_rate(rates);
  }
  sum.drive_ns += expert_drive_ns + dense_drive_ns;
  sum.token_ns +=
      hide(dense_drive_ns, shared_ns, k_drive_overlap) + hide(expert_drive_ns, expert_ns, k_drive_overlap);
  sum.token_ns += add_embeddings(sum, work, plan, rates, n_rows);
}

PassPrediction predict_prefill(const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
                               const Workload& workload) {
  PassPrediction pass;
  pass.hit_rate = 0;
  const std::uint32_t chunk = std::max(plan.prefill_chunk, 1u);
  const std::uint32_t n_whole = workload.n_prompt / chunk, rest = workload.n_prompt % chunk;
  for (std::uint32_t i = 0; i < n_whole; ++i) {
    add_pass(pass, work, plan, rates, workload, workload.depth + double{1} * i * chunk, chunk,
             rest == 0 && i + 1 == n_whole);
  }
  if (rest != 0)
    add_pass(pass, work, plan, rates, workload, workload.depth + double{1} * n_whole * chunk, rest, true);
  for (double* value :
       {&pass.token_ns, &pass.drive_ns, &pass.memory_ns, &pass.compute_ns, &pass.drive_bytes, &pass.hit_rate})
    *value /= workload.n_prompt;
  pass.tokens_per_second = k_giga / pass.token_ns;
  pass.limit = limit_of(pass);
  return pass;
}

}  // namespace

std::uint64_t WorkFacts::bytes_per_token() const noexcept {
  std::uint64_t bytes = 0;
  for (const TypeWork& part : always) bytes += part.bytes;
  for (const TypeWork& part : output) bytes += part.bytes;
  for (const TypeWork& part : expert) bytes += part.bytes * n_experts_used;
  return bytes;
}

const char* routing_name(Routing routing) noexcept {
  switch (routing) {
    case Routing::uniform:
      return "uniform";
    case Routing::typical:
      return "typical";
    case Routing::favorable:
      break;
  }
  return "favorable";
}

double expected_hit_rate(Routing routing, double cached_share) noexcept {
  const double share = std::clamp(cached_share, 0.0, 1.0);
  for (std::size_t i = 1; i < k_hit_curves.size(); ++i) {
    const CurvePoint &left = k_hit_curves[i - 1], &right = k_hit_curves[i];
    if (share > right.share) continue;
    const double t = (share - left.share) / (right.share - left.share);
    return on_curve(left, routing) + t * (on_curve(right, routing) - on_curve(left, routing));
  }
  return 1;
}

SpeedRates speed_rates(const Profile& profile) {
  SpeedRates rates;
  if (profile.machine) {
    rates.memory_bytes = profile.machine->memory.read_bytes_per_second;
    rates.kernels = profile.machine->kernels;
  }
  const DriveProfile* slowest = nullptr;
  for (const DriveProfile& drive : profile.drives) {
    if (!drive.has_rates()) continue;
    if (slowest == nullptr || best(drive.random)->bytes_per_second < best(slowest->random)->bytes_per_second)
      slowest = &drive;
  }
  if (slowest != nullptr) {
    rates.random = slowest->random;
    if (slowest->sequential) rates.sequential_bytes = slowest->sequential->bytes_per_second;
  }
  return rates;
}

void set_drive_rate(SpeedRates& rates, double bytes_per_second) {
  rates.random.clear();
  rates.sequential_bytes = bytes_per_second;
}

Workload cut_to_context(Workload workload, std::uint32_t n_ctx) noexcept {
  const std::uint32_t room = n_ctx > workload.depth ? n_ctx - workload.depth : 0;
  workload.n_answer = std::min(workload.n_answer, room / 2);
  workload.n_prompt = std::min(workload.n_prompt, room - workload.n_answer);
  return workload;
}

Prediction predict(const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
                   const Workload& workload) {
  if (!rates.knows_machine()) {
    base::fail(
        ErrorCode::invalid_argument,
        "speed cannot be predicted: the rates of memory and kernels are not known; run 'sluice profile'");
  }
  if (!plan.fully_resident() && !rates.knows_drive()) {
    base::fail(ErrorCode::invalid_argument,
               "speed cannot be predicted: the rate of the drive is not known; run 'sluice profile MODEL'");
  }
  Prediction prediction;
  prediction.workload = workload;
  if (workload.n_prompt != 0) prediction.prefill = predict_prefill(work, plan, rates, workload);
  if (workload.n_answer != 0) prediction.decode = predict_decode(work, plan, rates, workload);
  prediction.answer_seconds =
      (prediction.prefill.token_ns * workload.n_prompt + prediction.decode.token_ns * workload.n_answer) /
      k_giga;
  return prediction;
}

PredictionRange predict_range(const WorkFacts& work, const Plan& plan, const SpeedRates& rates,
                              Workload workload) {
  PredictionRange range;
  if (workload.heat) range.heat = predict(work, plan, rates, workload);
  workload.heat.reset();
  const auto with = [&](Routing routing) {
    workload.routing = routing;
    return predict(work, plan, rates, workload);
  };
  range.low = with(Routing::uniform);
  range.typical = with(Routing::typical);
  range.high = with(Routing::favorable);
  return range;
}

}  // namespace sluice
