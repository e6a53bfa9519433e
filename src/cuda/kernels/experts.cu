// Routing: which experts a row wants, and the work that follows from it.

#include "cuda/kernels/common.cuh"

namespace sluice::cuda {
namespace {

constexpr std::uint32_t k_max_experts = 1024;
enum Scoring : std::uint32_t { softmax_of_all, sigmoid, softmax_of_selected };  // RouterParams::Scoring

__device__ inline double sum_of_warp(double value) {
  for (int o = 16; o > 0; o >>= 1) value += __shfl_xor_sync(k_all_lanes, value, o);
  return value;
}

/// One warp: x = softmax(x), with the rules of kernels/router.cpp for infinities.
__device__ void softmax(float* x, std::uint32_t n) {
  const std::uint32_t lane = threadIdx.x;
  const float infinity = __int_as_float(0x7f800000);
  float largest = -infinity;
  for (std::uint32_t i = lane; i < n; i += k_warp) largest = fmaxf(largest, x[i]);
  largest = max_of_warp(largest);
  double sum = 0;
  if (isinf(largest)) {
    for (std::uint32_t i = lane; i < n; i += k_warp) sum += x[i] == infinity ? 1 : 0;
    sum = sum_of_warp(sum);
    for (std::uint32_t i = lane; i < n; i += k_warp)
      x[i] = x[i] == infinity ? __fdiv_rn(1.0f, static_cast<float>(sum)) : 0.0f;
    __syncwarp();
    return;
  }
  for (std::uint32_t i = lane; i < n; i += k_warp) {
    x[i] = exponential(x[i] - largest);
    sum += x[i];
  }
  sum = sum_of_warp(sum);
  for (std::uint32_t i = lane; i < n; i += k_warp) x[i] = static_cast<float>(x[i] / sum);
  __syncwarp();
}

struct Best {
  float key;
  std::uint32_t id;
};

__device__ inline Best better(const Best& a, const Best& b) {
  return b.id != ~0u && (a.id == ~0u || b.key > a.key || (b.key == a.key && b.id < a.id)) ? b : a;
}

constexpr std::uint32_t k_max_groups = 256;

/// One warp: takes the experts of all groups but the best out of the choice.
__device__ void keep_groups(const RouteArgs& args, float* keys, float* group_keys, bool* is_taken) {
  const std::uint32_t lane = threadIdx.x, size = args.n_experts / args.n_groups;
  const float infinity = __int_as_float(0x7f800000);
  for (std::uint32_t group = lane; group < args.n_groups; group += k_warp) {
    float sum = 0;
    const std::uint32_t first = group * size, end = first + size;
    for (std::uint32_t n = 0; n < args.n_group_best; ++n) {
      Best best{0, ~0u};
      for (std::uint32_t i = first; i < end; ++i) {
        if (!is_taken[i]) best = better(best, {keys[i], i});
      }
      is_taken[best.id] = true;
      sum += keys[best.id];
    }
    for (std::uint32_t i = first; i < end; ++i) is_taken[i] = false;
    group_keys[group] = sum;
  }
  __syncwarp();
  for (std::uint32_t group = lane; group < args.n_groups; group += k_warp) {
    // Groups that come before this one.
    std::uint32_t n_better = 0;
    for (std::uint32_t other = 0; other < args.n_groups; ++other)
      n_better += better({group_keys[group], group}, {group_keys[other], other}).id == other && other != group;
    if (n_better < args.n_groups_used) continue;
    for (std::uint32_t i = group * size; i < (group + 1) * size; ++i) keys[i] = -infinity;
  }
  __syncwarp();
}

/// One warp, one row.
__global__ void __launch_bounds__(k_warp) route(const __grid_constant__ RouteArgs args) {
  let_next_start();
  wait_for_previous();
  __shared__ float scores[k_max_experts], keys[k_max_experts], chosen[k_max_experts], group_keys[k_max_groups];
  __shared__ bool is_taken[k_max_experts];
  const std::uint32_t lane = threadIdx.x, row = blockIdx.x, n = args.n_experts;
  const float* logits = args.logits + static_cast<std::size_t>(row) * args.stride;
  const float infinity = __int_as_float(0x7f800000);
  for (std::uint32_t i = lane; i < n; i += k_warp) scores[i] = isnan(logits[i]) ? -infinity : logits[i];
  __syncwarp();
  if (args.scoring == softmax_of_all) softmax(scores, n);
  for (std::uint32_t i = lane; i < n; i += k_warp) {
    if (args.scoring == sigmoid)
      scores[i] = isnan(logits[i]) ? 0.0f : __fdiv_rn(1.0f, 1.0f + exponential(-scores[i] - 0.0f));
    const float key = scores[i] + (args.selection_bias != nullptr ? args.selection_bias[i] : 0.0f);
    keys[i] = isnan(logits[i]) || isnan(key) ? -infinity : key;
    is_taken[i] = false;
  }
  __syncwarp();
  if (args.n_groups_used < args.n_groups) keep_groups(args, keys, group_keys, is_taken);
  std::uint16_t* ids = args.ids + static_cast<std::size_t>(row) * args.n_used;
  float* weights = args.weights + static_cast<std::size_t>(row) * args.n_used;
  for (std::uint32_t rank = 0; rank < args.n_used; ++rank) {
    Best best{0, ~0u};
    for (std::uint32_t i = lane; i < n; i += k_warp) {
      if (!is_taken[i]) best = better(best, {keys[i], i});
    }
    for (int o = 16; o > 0; o >>= 1)
      best = better(best, {__shfl_xor_sync(k_all_lanes, best.key, o), __shfl_xor_sync(k_all_lanes, best.id, o)});
    if (lane == 0) {
      is_taken[best.id] = true;
      chosen[rank] = scores[best.id];
      ids[rank] = static_cast<std::uint16_t>(best.id);
    }
    __syncwarp();
  }
  if (args.scoring == softmax_of_selected) {
    softmax(chosen, args.n_used);
  } else if (args.normalize != 0) {
    double sum = 0;
    for (std::uint32_t i = 0; i < args.n_used; ++i) sum += chosen[i];
    constexpr double smallest_sum = 6.103515625e-5;
    sum = sum > smallest_sum ? sum : smallest_sum;
    __syncwarp();
    for (std::uint32_t i = lane; i < args.n_used; i += k_warp) chosen[i] = static_cast<float>(chosen[i] / sum);
  }
  for (std::uint32_t i = lane; i < args.n_used; i += k_warp) weights[i] = chosen[i] * args.scale;
}

/// y += weights[0] * x[0] + weights[1] * x[1] + ..., in that order.
__global__ void combine(const __grid_constant__ CombineArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= args.n_cols) return;
  const std::size_t first = static_cast<std::size_t>(row) * args.n_used;
  float sum = 0;
  for (std::uint32_t i = 0; i < args.n_used; ++i)
    sum = __fmaf_rn(args.weights[first + i], args.x[(first + i) * args.x_stride + column], sum);
  args.y[static_cast<std::size_t>(row) * args.y_stride + column] += sum;
}

}  // namespace

Kernel route_kernel() noexcept { return make_kernel(route, k_warp); }
Kernel combine_kernel() noexcept { return make_kernel(combine, 256); }

}  // namespace sluice::cuda
