#pragma once

// A warp computes R weight rows times T activation rows.
//   y = chain over blocks b in order of fma(float(I_b), d_w * d_x, y), then fma(-float(M_b), d_min * d_x, y)
// with exact integers: the arithmetic of the CPU's kernels (kernels/simd/panel_dot.hpp), so the same bits, whatever
// T, R and the place of a row are. All lanes find integers; then one lane for each of the R * T sums goes through
// the blocks of the step.

#include "cuda/kernels/formats.cuh"

namespace sluice::cuda {

template <class F>
constexpr int k_step_blocks = k_warp / F::k_lanes;

template <bool HasMin>
struct alignas(8) TermOf {
  float dot, scale;
};
template <>
struct alignas(16) TermOf<true> {
  float dot, scale, min, min_scale;
};
template <class F>
using Term = TermOf<F::k_has_min>;

/// One place more than blocks, so that lanes of the chains meet different banks.
template <class F, int N>
struct Terms {
  Term<F> of[N][k_step_blocks<F> + 1];
};

template <class F>
__device__ inline Sums join_lanes(Sums sums) {
#pragma unroll
  for (int o = F::k_lanes / 2; o > 0; o >>= 1) {
    sums.dot += __shfl_xor_sync(k_all_lanes, sums.dot, o);
    if constexpr (F::k_has_min) sums.min += __shfl_xor_sync(k_all_lanes, sums.min, o);
  }
  return sums;
}

template <class F>
__device__ inline float chain(const Term<F>* terms, int n, float y) {
#pragma unroll 4
  for (int b = 0; b < n; ++b) {
    const Term<F> t = terms[b];
    y = __fmaf_rn(t.dot, t.scale, y);
    if constexpr (F::k_has_min) y = __fmaf_rn(-t.min, t.min_scale, y);
  }
  return y;
}

/// load_row(r, b, sub) gives the bytes of block b of weight row r; x_rows[t] is activation row t. The sum of (r, t) ends
/// in lane r * T + t.
template <class F, int T, int R, class Load>
__device__ inline float row_group(Load load_row, const QuantizedRows& x,
                                  const std::uint32_t (&x_rows)[T], int n_blocks, Terms<F, R * T>& terms) {
  constexpr int step_blocks = k_step_blocks<F>, step_elements = step_blocks * F::k_block;
  const int lane = threadIdx.x % k_warp, sub = lane % F::k_lanes, own = lane / F::k_lanes;
  float y = 0;
  typename F::Raw next[R];
  const auto load = [&](int step) {
    const int b = min(step * step_blocks + own, n_blocks - 1);
#pragma unroll
    for (int r = 0; r < R; ++r) next[r] = load_row(r, b, sub);
  };
  load(0);
  wait_for_previous();
  for (int begin = 0, step = 0; begin < n_blocks; begin += step_blocks, ++step) {
    typename F::Unpacked unpacked[R];
    float2 scales[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      unpacked[r] = F::unpack(next[r], sub);
      scales[r] = F::scales(next[r]);
    }
    if (begin + step_blocks < n_blocks) load(step + 1);
    const int b = min(begin + own, n_blocks - 1);
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const std::size_t row = x_rows[t];
      Input input{x.q + row * x.q_stride + static_cast<std::size_t>(step) * step_elements + 16 * lane, nullptr};
      if constexpr (F::k_block == 256) input.sums = x.sums + row * x.sum_stride + 16 * b;
      const float d_x = __ldg(x.d + row * x.d_stride + b);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const Sums sums = join_lanes<F>(F::dot(unpacked[r], input, sub));
        if (sub == 0) {
          Term<F> term;
          term.dot = static_cast<float>(sums.dot);
          term.scale = scales[r].x * d_x;
          if constexpr (F::k_has_min) {
            term.min = static_cast<float>(sums.min);
            term.min_scale = scales[r].y * d_x;
          }
          terms.of[r * T + t][own] = term;
        }
      }
    }
    __syncwarp();
    if (lane < R * T) y = chain<F>(terms.of[lane], min(step_blocks, n_blocks - begin), y);
    __syncwarp();
  }
  return y;
}

}  // namespace sluice::cuda
