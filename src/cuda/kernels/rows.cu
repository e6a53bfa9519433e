// What happens to rows of floats between products.

#include "cuda/kernels/common.cuh"
#include "cuda/kernels/layout.hpp"

namespace sluice::cuda {
namespace {

/// Eight elements of a lane, 256 of a warp, and where they go.
template <int LanesPerBlock, std::uint32_t Piece>
__device__ inline void quantize_lane(const float (&v)[8], const QuantizeArgs& args, std::uint32_t row,
                                     std::uint32_t first, bool is_inside) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
  for (int o = LanesPerBlock / 2; o > 0; o >>= 1)
    largest = max(largest, __shfl_xor_sync(k_all_lanes, largest, o));
  const float d = __fdiv_rn(__uint_as_float(largest), 127.0f);
  const bool is_usable = d > 0.0f && d < __uint_as_float(0x7f800000u);
  int q[8], sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    q[i] = is_usable ? __float2int_rn(fminf(fmaxf(__fdiv_rn(v[i], d), -127.0f), 127.0f)) : 0;
    sum += q[i];
  }
  const auto bytes = [&](int i) {
    return (q[i] & 255u) | (q[i + 1] & 255u) << 8 | (q[i + 2] & 255u) << 16 | (q[i + 3] & 255u) << 24;
  };
  sum += __shfl_xor_sync(k_all_lanes, sum, 1);
  if (!is_inside) return;
  std::int8_t* to = args.q + static_cast<std::size_t>(row) * args.q_stride + place_of<Piece>(first);
  *reinterpret_cast<uint2*>(to) = make_uint2(bytes(0), bytes(4));
  const std::uint32_t lane = threadIdx.x % k_warp;
  if (lane % LanesPerBlock == 0)
    args.d[static_cast<std::size_t>(row) * args.d_stride + first / (8 * LanesPerBlock)] = d;
  if (args.sums != nullptr && lane % 2 == 0)
    args.sums[static_cast<std::size_t>(row) * args.sum_stride + first / 16] = static_cast<std::int16_t>(sum);
}

__device__ inline void load8(const float* x, std::uint32_t first, std::uint32_t n, float (&v)[8]) {
  if (first + 8 <= n && reinterpret_cast<std::uintptr_t>(x + first) % 16 == 0) {
    const float4 a = *reinterpret_cast<const float4*>(x + first);
    const float4 b = *reinterpret_cast<const float4*>(x + first + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = first + i < n ? x[first + i] : 0.0f;
}

/// One warp, 256 elements.
template <bool Is256>
__global__ void quantize(const __grid_constant__ QuantizeArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t warp = blockIdx.x * (blockDim.x / k_warp) + threadIdx.x / k_warp, row = blockIdx.y;
  if (warp * 256 >= args.n_cols) return;
  const std::uint32_t first = warp * 256 + threadIdx.x % k_warp * 8;
  float v[8];
  load8(args.x + static_cast<std::size_t>(row) * args.x_stride, first, args.n_cols, v);
  if (args.up != nullptr) {
    float up[8];
    load8(args.up + static_cast<std::size_t>(row) * args.up_stride, first, args.n_cols, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = swiglu(v[i], up[i]);
      if (first + i < args.n_cols) args.y[static_cast<std::size_t>(row) * args.y_stride + first + i] = v[i];
    }
  }
  if constexpr (Is256) {
    quantize_lane<32, k_piece_256>(v, args, row, first, first < args.n_cols);
  } else {
    quantize_lane<4, k_piece_32>(v, args, row, first, first < args.n_cols);
  }
}

/// One block, one row.
__global__ void __launch_bounds__(512) norm(const __grid_constant__ NormArgs args) {
  let_next_start();
  wait_for_previous();
  __shared__ float shared[16];
  const std::uint32_t row = blockIdx.x, n = args.n_cols, lane = threadIdx.x % k_warp;
  const float* x = args.x + static_cast<std::size_t>(row) * args.x_stride;
  float* y = args.y + static_cast<std::size_t>(row) * args.y_stride;
  float sum = 0;
  for (std::uint32_t first = threadIdx.x * 8; first < n; first += blockDim.x * 8) {
    float v[8];
    load8(x, first, n, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(v[i], v[i], sum);
  }
  sum = sum_of_block(sum, shared);
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(n)) + args.eps));
  // All lanes of a warp stay together for the sake of its blocks.
  for (std::uint32_t begin = threadIdx.x / k_warp * 256; begin < n; begin += blockDim.x * 8) {
    const std::uint32_t first = begin + lane * 8;
    float v[8];
    load8(x, first, n, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i >= n) break;
      v[i] *= factor;
      if (args.gain != nullptr) v[i] *= args.gain[first + i];
      y[first + i] = v[i];
    }
    if (args.k.q != nullptr) quantize_lane<32, k_piece_256>(v, args.k, row, first, first < n);
    if (args.b.q != nullptr) quantize_lane<4, k_piece_32>(v, args.b, row, first, first < n);
  }
}

/// The target of `head`, which becomes its number there; null behind the last.
template <class Args>
__device__ inline const typename Args::Target* target_of(const Args& args, std::uint32_t& head) {
  for (std::uint32_t i = 0; i < args.n_targets; ++i) {
    if (head < args.targets[i].n_heads) return &args.targets[i];
    head -= args.targets[i].n_heads;
  }
  return nullptr;
}

/// One warp, one head.
__global__ void norm_heads(const __grid_constant__ NormHeadsArgs args) {
  let_next_start();
  wait_for_previous();
  std::uint32_t head = blockIdx.x * (blockDim.x / k_warp) + threadIdx.x / k_warp;
  const NormHeadsArgs::Target* target = target_of(args, head);
  if (target == nullptr) return;
  float* x = target->x + static_cast<std::size_t>(blockIdx.y) * target->stride + head * args.head_dim;
  float sum = 0;
  for (std::uint32_t i = threadIdx.x % k_warp; i < args.head_dim; i += k_warp)
    sum = __fmaf_rn(x[i], x[i], sum);
  sum = sum_of_warp(sum);
  const float mean = __fdiv_rn(sum, static_cast<float>(args.head_dim));
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(mean + args.eps));
  for (std::uint32_t i = threadIdx.x % k_warp; i < args.head_dim; i += k_warp) {
    const float value = x[i] * factor;
    x[i] = target->gain != nullptr ? value * target->gain[i] : value;
  }
}

__global__ void rope_table(const __grid_constant__ RopeTableArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t pair = threadIdx.x, row = blockIdx.x;
  if (pair >= args.n_pairs) return;
  double sine, cosine;
  sincos(args.positions[row] * args.frequencies[pair], &sine, &cosine);
  float* table = args.table + static_cast<std::size_t>(row) * 2 * args.n_pairs;
  table[pair] = static_cast<float>(cosine * args.magnitude);
  table[args.n_pairs + pair] = static_cast<float>(sine * args.magnitude);
}

__global__ void rope(const __grid_constant__ RopeArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t n_pairs = args.n_rot / 2, row = blockIdx.y;
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, pair = i % n_pairs;
  std::uint32_t head = i / n_pairs;
  const RopeArgs::Target* target = target_of(args, head);
  if (target == nullptr) return;
  const float* x = target->x + static_cast<std::size_t>(row) * target->x_stride + head * target->x_step;
  float* y = target->y + static_cast<std::size_t>(row) * target->y_stride + head * target->y_step;
  const float* table = args.table + static_cast<std::size_t>(row) * args.n_rot;
  const std::uint32_t first = args.is_neox ? pair : 2 * pair;
  const std::uint32_t second = args.is_neox ? pair + n_pairs : 2 * pair + 1;
  const float a = x[first], b = x[second], c = table[pair], s = table[n_pairs + pair];
  y[first] = __fmaf_rn(-b, s, a * c);
  y[second] = __fmaf_rn(b, c, a * s);
}

enum class Element { swiglu, add, add_gated, scale, scale_by_position, scale_rows, clear, softcap };

template <Element Op>
__global__ void elements(const __grid_constant__ ElementArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= args.n_cols) return;
  const std::size_t r = row;
  float& y = args.y[r * args.y_stride + column];
  if constexpr (Op == Element::scale) {
    y *= args.factor;
  } else if constexpr (Op == Element::clear) {
    y = 0;
  } else if constexpr (Op == Element::softcap) {
    y = args.factor * tanhf(__fdiv_rn(y, args.factor));
  } else if constexpr (Op == Element::scale_by_position) {
    const auto n = static_cast<float>((args.positions[row] + args.offset) / args.interval);
    y *= 1.0f + args.factor * logf(1.0f + n);
  } else {
    const float a = args.a[r * args.a_stride + column];
    if constexpr (Op == Element::scale_rows) {
      y = a * args.b[row];
    } else if constexpr (Op == Element::swiglu) {
      y = swiglu(a, args.b[r * args.b_stride + column]);
    } else if constexpr (Op == Element::add) {
      y += args.factor * a;
    } else {
      y += __fdiv_rn(args.factor, 1.0f + expf(-args.b[r * args.b_stride])) * a;
    }
  }
}

/// One thread, one column: rows move up, one behind the other.
__global__ void keep_rows(const __grid_constant__ ElementArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= args.n_cols) return;
  for (std::uint32_t i = 0; i < args.n_rows; ++i) {
    const std::size_t from = args.rows[i];
    args.y[static_cast<std::size_t>(i) * args.y_stride + column] = args.y[from * args.y_stride + column];
  }
}

}  // namespace

Kernel quantize_kernel(bool is_256) noexcept {
  return is_256 ? make_kernel(quantize<true>, 128, 4) : make_kernel(quantize<false>, 128, 4);
}
Kernel norm_kernel() noexcept { return make_kernel(norm, 512); }
Kernel norm_heads_kernel() noexcept { return make_kernel(norm_heads, 128, 4); }
Kernel rope_table_kernel() noexcept { return make_kernel(rope_table, 256); }
Kernel rope_kernel() noexcept { return make_kernel(rope, 128); }
Kernel swiglu_kernel() noexcept { return make_kernel(elements<Element::swiglu>, 256); }
Kernel add_kernel() noexcept { return make_kernel(elements<Element::add>, 256); }
Kernel add_gated_kernel() noexcept { return make_kernel(elements<Element::add_gated>, 256); }
Kernel scale_kernel() noexcept { return make_kernel(elements<Element::scale>, 256); }
Kernel clear_kernel() noexcept { return make_kernel(elements<Element::clear>, 256); }
Kernel softcap_kernel() noexcept { return make_kernel(elements<Element::softcap>, 256); }
Kernel scale_by_position_kernel() noexcept { return make_kernel(elements<Element::scale_by_position>, 256); }
Kernel scale_rows_kernel() noexcept {
  return make_kernel(elements<Element::scale_rows>, 256);
}
Kernel keep_rows_kernel() noexcept { return make_kernel(keep_rows, 128); }

}  // namespace sluice::cuda
