// Products of weight matrices with up to eight activation rows at once: bound by the memory that weights come from.

#include "cuda/kernels/row_group.cuh"

namespace sluice::cuda {
namespace {

constexpr int k_warps = 4;

/// Rows of a warp: few, since one row of a usual width is all that a warp can have in flight.
template <int T>
constexpr int k_rows = T == 1 ? 2 : T == 8 ? 2 : 4;

__device__ inline const ProductArgs::Part& part_of(const ProductArgs& args, std::uint32_t group,
                                                   std::uint32_t& first_group) {
  std::uint32_t i = 0;
  first_group = 0;
  while (i + 1 < args.n_parts && group >= args.parts[i].end_group) first_group = args.parts[i++].end_group;
  return args.parts[i];
}

__device__ inline void finish(const ProductArgs::Part& part, std::uint32_t x_row, std::uint32_t row, float y) {
  if (part.scale != 1.0f) y *= part.scale;
  if (part.bias != nullptr) y += part.bias[row];
  part.y[static_cast<std::size_t>(x_row) * part.y_stride + row] = y;
  if (part.sum != nullptr) part.sum[static_cast<std::size_t>(x_row) * part.sum_stride + row] += y;
}

/// Neighbouring blocks have the same weight rows and the next activation rows: weights come from the L2 cache then.
template <class F, int T, int R>
__global__ void __launch_bounds__(k_warps* k_warp) product(const __grid_constant__ ProductArgs args) {
  __shared__ Terms<F, R * T> terms[k_warps];
  const std::uint32_t warp = threadIdx.x / k_warp, lane = threadIdx.x % k_warp;
  const std::uint32_t group = blockIdx.y * k_warps + warp;
  if (group >= args.parts[args.n_parts - 1].end_group) return;
  std::uint32_t first_group;
  const ProductArgs::Part& part = part_of(args, group, first_group);
  const std::uint32_t first_row = (group - first_group) * R, first_x = blockIdx.x * T;
  std::uint64_t first[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const std::uint32_t row = min(first_row + r, part.n_out - 1);
    first[r] = part.w.first_block + static_cast<std::uint64_t>(row) * args.blocks_per_row;
  }
  std::uint32_t x_rows[T];
#pragma unroll
  for (int t = 0; t < T; ++t) x_rows[t] = min(first_x + t, args.n_rows - 1);
  const float y =
      row_group<F, T, R>([&](int r, int b, int sub) { return F::load(part.w, first[r] + b, sub); }, args.x, x_rows,
                         static_cast<int>(args.blocks_per_row), terms[warp]);
  let_next_start();
  const std::uint32_t row = first_row + lane / T, x_row = first_x + lane % T;
  if (lane < R * T && row < part.n_out && x_row < args.n_rows) finish(part, x_row, row, y);
}

/// Plain numbers: lane l has eight elements in every 256, then single ones; the lanes' sums are added pairwise.
template <class F, int T>
__global__ void __launch_bounds__(k_warps* k_warp) float_product(const __grid_constant__ ProductArgs args) {
  const std::uint32_t lane = threadIdx.x % k_warp, group = blockIdx.y * k_warps + threadIdx.x / k_warp;
  if (group >= args.parts[args.n_parts - 1].end_group) return;
  std::uint32_t first_group;
  const ProductArgs::Part& part = part_of(args, group, first_group);
  const std::uint32_t row = group - first_group, first_x = blockIdx.x * T, n = args.blocks_per_row;
  const std::uint8_t* w =
      part.w.base + (part.w.first_block + static_cast<std::uint64_t>(row) * n) * F::k_bytes;
  wait_for_previous();
  const float* x[T];
  float sums[T];
#pragma unroll
  for (int t = 0; t < T; ++t) {
    x[t] = args.x_floats + static_cast<std::size_t>(min(first_x + t, args.n_rows - 1)) * args.x_stride;
    sums[t] = 0;
  }
  // Rows of weights begin at a multiple of 16 bytes when their length is one of 8.
  const std::uint32_t whole = n % 8 == 0 ? n : 0;
  const bool is_aligned = args.x_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x_floats) % 16 == 0;
#pragma unroll 4
  for (std::uint32_t i = 8 * lane; i < whole; i += 8 * k_warp) {
    float values[8];
    F::load8(w + static_cast<std::size_t>(i) * F::k_bytes, values);
#pragma unroll
    for (int t = 0; t < T; ++t) {
      float xs[8];
      if (is_aligned) {
        F32::load8(reinterpret_cast<const std::uint8_t*>(x[t] + i), xs);
      } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) xs[e] = x[t][i + e];
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[t] = __fmaf_rn(values[e], xs[e], sums[t]);
    }
  }
  for (std::uint32_t i = whole + lane; i < n; i += k_warp) {
    const float value = F::load1(w + static_cast<std::size_t>(i) * F::k_bytes);
#pragma unroll
    for (int t = 0; t < T; ++t) sums[t] = __fmaf_rn(value, x[t][i], sums[t]);
  }
#pragma unroll
  for (int t = 0; t < T; ++t) {
    const float y = sum_of_warp(sums[t]);
    if (lane == 0 && first_x + t < args.n_rows) finish(part, first_x + t, row, y);
  }
}

/// What a block works on: a job, or choice blockIdx.x of the route.
template <int T>
struct Work {
  MatrixRef gate, up, down;
  float gate_scale = 1, up_scale = 1, down_scale = 1;
  std::uint32_t n_rows = 1, hidden_row = 0;
  std::uint32_t in_rows[T], out_rows[T];

  __device__ explicit Work(const ExpertArgs& args) {
    if (args.jobs != nullptr) {
      const ExpertJob& job = args.jobs[blockIdx.x];
      gate = job.gate, up = job.up, down = job.down;
      gate_scale = job.gate_scale, up_scale = job.up_scale, down_scale = job.down_scale;
      n_rows = job.n_rows, hidden_row = job.hidden_row;
#pragma unroll
      for (int t = 0; t < T; ++t) {
        const std::uint32_t at = min(static_cast<std::uint32_t>(t), n_rows - 1);
        in_rows[t] = job.in_rows[at], out_rows[t] = job.out_rows[at];
      }
      return;
    }
    const RoutedArgs& routed = args.routed;
    const std::uint64_t expert = routed.ids[blockIdx.x];
    gate = routed.gate, up = routed.up, down = routed.down;
    gate.first_block += expert * routed.gate_blocks;
    up.first_block += expert * routed.up_blocks;
    down.first_block += expert * routed.down_blocks;
    if (routed.gate_scales != nullptr) gate_scale = routed.gate_scales[expert];
    if (routed.up_scales != nullptr) up_scale = routed.up_scales[expert];
    if (routed.down_scales != nullptr) down_scale = routed.down_scales[expert];
    hidden_row = blockIdx.x;
#pragma unroll
    for (int t = 0; t < T; ++t) in_rows[t] = blockIdx.x / routed.n_used, out_rows[t] = blockIdx.x;
  }
};

/// y = silu(gate * x) * (up * x), rows of y by the job's place among hidden rows. A warp finds a row of both.
template <class F, int T>
__global__ void __launch_bounds__(k_warps* k_warp) expert_up(const __grid_constant__ ExpertArgs args) {
  wait_for_previous();
  __shared__ Terms<F, 2 * T> terms[k_warps];
  const std::uint32_t warp = threadIdx.x / k_warp, lane = threadIdx.x % k_warp;
  const std::uint32_t row = blockIdx.y * k_warps + warp;
  if (row >= args.n_out) return;
  const Work<T> work(args);
  const std::uint64_t first = std::uint64_t{row} * args.blocks_per_row;
  const auto load = [&](int r, int b, int sub) {
    const MatrixRef& w = r == 0 ? work.gate : work.up;
    return F::load(w, w.first_block + first + b, sub);
  };
  const int n = static_cast<int>(args.blocks_per_row);
  float g = row_group<F, T, 2>(load, args.x, work.in_rows, n, terms[warp]);
  let_next_start();
  float u = __shfl_down_sync(k_all_lanes, g, T);
  if (lane >= T || lane >= work.n_rows) return;
  if (work.gate_scale != 1.0f) g *= work.gate_scale;
  if (work.up_scale != 1.0f) u *= work.up_scale;
  args.y[static_cast<std::size_t>(work.hidden_row + lane) * args.y_stride + row] = swiglu(g, u);
}

template <class F, int T>
__global__ void __launch_bounds__(k_warps* k_warp) expert_down(const __grid_constant__ ExpertArgs args) {
  constexpr int R = T == 1 ? 1 : 2;
  wait_for_previous();
  __shared__ Terms<F, R * T> terms[k_warps];
  __shared__ std::uint32_t out_rows[k_warps][T];
  const std::uint32_t warp = threadIdx.x / k_warp, lane = threadIdx.x % k_warp;
  const std::uint32_t first_row = (blockIdx.y * k_warps + warp) * R;
  if (first_row >= args.n_out) return;
  const Work<T> work(args);
  std::uint32_t x_rows[T];
#pragma unroll
  for (int t = 0; t < T; ++t) {
    x_rows[t] = work.hidden_row + min(static_cast<std::uint32_t>(t), work.n_rows - 1);
    if (lane == 0) out_rows[warp][t] = work.out_rows[t];
  }
  const auto load = [&](int r, int b, int sub) {
    const std::uint64_t at = min(first_row + r, args.n_out - 1);
    return F::load(work.down, work.down.first_block + at * args.blocks_per_row + b, sub);
  };
  float y = row_group<F, T, R>(load, args.x, x_rows, static_cast<int>(args.blocks_per_row), terms[warp]);
  let_next_start();
  const std::uint32_t row = first_row + lane / T, t = lane % T;
  if (lane >= R * T || row >= args.n_out || t >= work.n_rows) return;
  if (work.down_scale != 1.0f) y *= work.down_scale;
  args.y[static_cast<std::size_t>(out_rows[warp][t]) * args.y_stride + row] = y;
}

template <class F, int T>
Kernel make_product() noexcept {
  Kernel kernel = make_kernel(product<F, T, k_rows<T>>, k_warps * k_warp, k_warps * k_rows<T>);
  kernel.groups = k_warps;
  kernel.tile = T;
  return kernel;
}

template <class F>
Kernel product_of(std::uint32_t n_rows) noexcept {
  if (n_rows == 1) return make_product<F, 1>();
  if (n_rows == 2) return make_product<F, 2>();
  if (n_rows <= 4) return make_product<F, 4>();
  return make_product<F, 8>();
}

template <class F>
Kernel float_product_of(std::uint32_t n_rows) noexcept {
  Kernel kernel = n_rows == 1 ? make_kernel(float_product<F, 1>, k_warps * k_warp, k_warps)
                              : make_kernel(float_product<F, 8>, k_warps * k_warp, k_warps);
  kernel.groups = k_warps;
  kernel.tile = n_rows == 1 ? 1 : 8;
  return kernel;
}

template <class F>
Kernel expert_up_of(std::uint32_t n_rows) noexcept {
  constexpr std::uint32_t threads = k_warps * k_warp;
  if (n_rows == 1) return make_kernel(expert_up<F, 1>, threads, k_warps);
  return make_kernel(expert_up<F, 8>, threads, k_warps);
}

template <class F>
Kernel expert_down_of(std::uint32_t n_rows) noexcept {
  constexpr std::uint32_t threads = k_warps * k_warp;
  if (n_rows == 1) return make_kernel(expert_down<F, 1>, threads, k_warps);
  return make_kernel(expert_down<F, 8>, threads, 2 * k_warps);
}

}  // namespace

#define SLUICE_FOR_TYPE(function, ...)       \
  switch (type) {                            \
    case Q4K::k_type:                        \
      return function<Q4K>(__VA_ARGS__);     \
    case Q5K::k_type:                        \
      return function<Q5K>(__VA_ARGS__);     \
    case Q6K::k_type:                        \
      return function<Q6K>(__VA_ARGS__);     \
    case Q4_0::k_type:                       \
      return function<Q4_0>(__VA_ARGS__);    \
    case Q5_0::k_type:                       \
      return function<Q5_0>(__VA_ARGS__);    \
    case Q8_0::k_type:                       \
      return function<Q8_0>(__VA_ARGS__);    \
    case Mxfp4::k_type:                      \
      return function<Mxfp4>(__VA_ARGS__);   \
    default:                                 \
      break;                                 \
  }

Kernel product_kernel(int type, std::uint32_t n_rows) noexcept {
  SLUICE_FOR_TYPE(product_of, n_rows)
  if (type == F32::k_type) return float_product_of<F32>(n_rows);
  if (type == F16::k_type) return float_product_of<F16>(n_rows);
  if (type == Bf16::k_type) return float_product_of<Bf16>(n_rows);
  return {};
}

Kernel expert_up_kernel(int type, std::uint32_t n_rows) noexcept {
  SLUICE_FOR_TYPE(expert_up_of, n_rows)
  return {};
}

Kernel expert_down_kernel(int type, std::uint32_t n_rows) noexcept {
  SLUICE_FOR_TYPE(expert_down_of, n_rows)
  return {};
}

}  // namespace sluice::cuda
