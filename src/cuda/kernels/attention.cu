// The paged KV cache. Attention takes segments of 256 positions, each on its own, and merges their results in order
// (FlashDecoding's scheme, Dao et al. 2023): what a row gives depends on its position alone.

#include "cuda/kernels/common.cuh"

namespace sluice::cuda {
namespace {

constexpr std::uint32_t k_page_tokens = 64, k_block = 32, k_block_bytes = 34;
constexpr std::uint32_t k_threads = k_attention_segment;

__device__ inline std::uint32_t head_bytes(std::uint32_t dim, bool is_q8) {
  return is_q8 ? dim / k_block * k_block_bytes : 2 * dim;
}

/// Where a position of a sequence lies: the layer's part of its page.
__device__ inline std::uint8_t* page_of(const KvArgs& kv, std::uint32_t sequence, std::uint32_t position) {
  const std::uint32_t page = __ldg(kv.pages + kv.first_page[sequence] + position / k_page_tokens);
  return kv.base + page * kv.page_bytes;
}

__device__ inline std::uint64_t head_place(std::uint32_t head, std::uint32_t position, std::uint32_t bytes) {
  return (std::uint64_t{head} * k_page_tokens + position % k_page_tokens) * bytes;
}

__device__ inline unsigned short to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }

/// 32 numbers of a warp as one block.
__device__ inline void store_block(float x, std::uint8_t* to) {
  const std::uint32_t lane = threadIdx.x % k_warp;
  const bool is_nan = __any_sync(k_all_lanes, isnan(x));
  const float scale = is_nan ? __int_as_float(0x7fc00000) : __fdiv_rn(max_of_warp(fabsf(x)), 127.0f);
  const unsigned short bits = to_half(scale);
  const float d = half_bits(bits);
  const bool is_usable = d > 0.0f && !isinf(d);
  const int q = is_usable ? __float2int_rn(fminf(fmaxf(x * __fdiv_rn(1.0f, d), -128.0f), 127.0f)) : 0;
  to[2 + lane] = static_cast<std::uint8_t>(q);
  if (lane == 0) *reinterpret_cast<unsigned short*>(to) = bits;
}

__device__ inline void store_row(const float* x, std::uint8_t* page, std::uint32_t position, std::uint32_t n_heads,
                                 std::uint32_t dim, bool is_q8) {
  const std::uint32_t bytes = head_bytes(dim, is_q8);
  for (std::uint32_t i = threadIdx.x; i < n_heads * dim; i += blockDim.x) {
    const std::uint32_t head = i / dim, e = i % dim;
    std::uint8_t* to = page + head_place(head, position, bytes);
    if (is_q8) {
      store_block(x[i], to + e / k_block * k_block_bytes);
    } else {
      reinterpret_cast<unsigned short*>(to)[e] = to_half(x[i]);
    }
  }
}

/// One block, one row.
__global__ void store_kv(const __grid_constant__ StoreKvArgs args) {
  let_next_start();
  wait_for_previous();
  const KvArgs& kv = args.kv;
  const std::uint32_t row = blockIdx.x, position = kv.positions[row];
  std::uint8_t* page = page_of(kv, kv.sequence_of[row], position);
  const bool is_q8 = kv.is_q8 != 0;
  store_row(args.k + static_cast<std::size_t>(row) * args.k_stride, page, position, kv.n_kv_heads, kv.k_dim, is_q8);
  if (args.v == nullptr) return;
  store_row(args.v + static_cast<std::size_t>(row) * args.v_stride, page + kv.v_offset, position, kv.n_kv_heads,
            kv.v_dim, is_q8);
}

/// What a row sees: positions [begin, end), in segments from `first` on.
struct Visible {
  std::uint32_t begin, end, first;
};

__device__ inline Visible visible(const AttentionArgs& args, std::uint32_t row) {
  const std::uint32_t position = args.kv.positions[row], end = position + 1;
  const std::uint32_t of_window = args.window != 0 && end > args.window ? end - args.window : 0;
  const std::uint32_t begin = max(of_window, args.chunk != 0 ? position / args.chunk * args.chunk : 0u);
  return {begin, end, begin / k_attention_segment};
}

template <int Q>
__device__ inline void score_q8(const std::uint8_t* key, const float* q, std::uint32_t dim, float (&sums)[Q]) {
  for (std::uint32_t block = 0; block < dim / k_block; ++block, key += k_block_bytes) {
    const float d = half_bits(*reinterpret_cast<const unsigned short*>(key));
    for (std::uint32_t e = 0; e < k_block; e += 2) {
      const unsigned pair = *reinterpret_cast<const unsigned short*>(key + 2 + e);
      const float a = d * static_cast<float>(static_cast<signed char>(pair));
      const float b = d * static_cast<float>(static_cast<signed char>(pair >> 8));
#pragma unroll
      for (int i = 0; i < Q; ++i) {
        const float* at = q + i * k_max_attention_dim + block * k_block + e;
        sums[i] = __fmaf_rn(b, at[1], __fmaf_rn(a, at[0], sums[i]));
      }
    }
  }
}

template <int Q>
__device__ inline void score_f16(const std::uint8_t* key, const float* q, std::uint32_t dim, float (&sums)[Q]) {
  std::uint32_t e = 0;
  if (dim % 8 == 0) {
#pragma unroll 8
    for (; e < dim; e += 8) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(key + 2 * e));
      const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < Q; ++i) {
        const float4* at = reinterpret_cast<const float4*>(q + i * k_max_attention_dim + e);
        const float4 a = at[0], b = at[1];
        sums[i] = __fmaf_rn(half_bits(words[0]), a.x, sums[i]);
        sums[i] = __fmaf_rn(half_bits(words[0] >> 16), a.y, sums[i]);
        sums[i] = __fmaf_rn(half_bits(words[1]), a.z, sums[i]);
        sums[i] = __fmaf_rn(half_bits(words[1] >> 16), a.w, sums[i]);
        sums[i] = __fmaf_rn(half_bits(words[2]), b.x, sums[i]);
        sums[i] = __fmaf_rn(half_bits(words[2] >> 16), b.y, sums[i]);
        sums[i] = __fmaf_rn(half_bits(words[3]), b.z, sums[i]);
        sums[i] = __fmaf_rn(half_bits(words[3] >> 16), b.w, sums[i]);
      }
    }
  }
  for (; e < dim; ++e) {
    const float value = half_bits(reinterpret_cast<const unsigned short*>(key)[e]);
#pragma unroll
    for (int i = 0; i < Q; ++i) sums[i] = __fmaf_rn(value, q[i * k_max_attention_dim + e], sums[i]);
  }
}

/// Elements 2 pair and 2 pair + 1 of a value row.
__device__ inline float2 value_pair(const std::uint8_t* row, std::uint32_t pair, bool is_q8) {
  if (!is_q8) {
    const unsigned v = __ldg(reinterpret_cast<const unsigned*>(row) + pair);
    return make_float2(half_bits(v), half_bits(v >> 16));
  }
  const std::uint8_t* block = row + 2 * pair / k_block * k_block_bytes;
  const float d = half_bits(*reinterpret_cast<const unsigned short*>(block));
  const unsigned v = *reinterpret_cast<const unsigned short*>(block + 2 + 2 * pair % k_block);
  return make_float2(d * static_cast<float>(static_cast<signed char>(v)),
                     d * static_cast<float>(static_cast<signed char>(v >> 8)));
}

template <int Q>
struct Shared {
  float q[Q * k_max_attention_dim];
  float weights[Q][k_attention_segment];
  float2 sums[Q][k_threads];
  float reduce[k_threads / k_warp];
  const std::uint8_t* pages[k_attention_segment / k_page_tokens];  ///< Of the segment.
};

__device__ inline float max_of_block(float value, float* shared) {
  value = max_of_warp(value);
  if (threadIdx.x % k_warp == 0) shared[threadIdx.x / k_warp] = value;
  __syncthreads();
  float largest = shared[0];
  for (std::uint32_t w = 1; w < k_threads / k_warp; ++w) largest = fmaxf(largest, shared[w]);
  __syncthreads();
  return largest;
}

__device__ inline float* partial_of(const AttentionArgs& args, std::uint32_t row, std::uint32_t head,
                                    std::uint32_t segment) {
  return args.partials + ((static_cast<std::size_t>(row) * args.n_heads + head) * args.n_segments + segment) *
                             (args.kv.v_dim + 2);
}

/// sums[i] = sum over positions of weights * values: threads share a position by pairs of elements. Sixteen positions
/// are asked for before the first is used.
template <int Q>
__device__ inline void add_values(const AttentionArgs& args, std::uint32_t kv_head, std::uint32_t begin,
                                  std::uint32_t end, Shared<Q>& shared) {
  constexpr std::uint32_t ahead = 16;
  const KvArgs& kv = args.kv;
  const bool is_q8 = kv.is_q8 != 0;
  const std::uint32_t n_pairs = kv.v_dim / 2, n_groups = k_threads / n_pairs;
  const std::uint32_t group = threadIdx.x / n_pairs, pair = threadIdx.x % n_pairs;
  const std::uint32_t bytes = head_bytes(kv.v_step, is_q8);
  const std::uint32_t start = begin / k_attention_segment * k_attention_segment;
  float2 sums[Q] = {};
  if (group < n_groups) {
    for (std::uint32_t first = group; start + first < end; first += ahead * n_groups) {
      float2 values[ahead];
#pragma unroll
      for (std::uint32_t i = 0; i < ahead; ++i) {
        const std::uint32_t position = start + first + i * n_groups;
        values[i] = make_float2(0, 0);
        if (position < begin || position >= end) continue;
        const std::uint8_t* page = shared.pages[position % k_attention_segment / k_page_tokens];
        values[i] = value_pair(page + kv.v_offset + head_place(kv_head, position, bytes), pair, is_q8);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < ahead; ++i) {
        const std::uint32_t at = min(first + i * n_groups, k_attention_segment - 1);
#pragma unroll
        for (int q = 0; q < Q; ++q) {
          sums[q].x = __fmaf_rn(shared.weights[q][at], values[i].x, sums[q].x);
          sums[q].y = __fmaf_rn(shared.weights[q][at], values[i].y, sums[q].y);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Q; ++i) shared.sums[i][threadIdx.x] = sums[i];
  __syncthreads();
}

/// One block: a segment of one row, for up to Q of the queries that share a key head.
template <int Q>
__global__ void __launch_bounds__(k_threads) attend(const __grid_constant__ AttentionArgs args) {
  let_next_start();
  wait_for_previous();
  __shared__ Shared<Q> shared;
  const KvArgs& kv = args.kv;
  const std::uint32_t row = blockIdx.z, kv_head = blockIdx.y / args.n_chunks, chunk = blockIdx.y % args.n_chunks;
  const Visible seen = visible(args, row);
  const std::uint32_t start = (seen.first + blockIdx.x) * k_attention_segment;
  if (start >= seen.end) return;
  const std::uint32_t begin = max(start, seen.begin), end = min(start + k_attention_segment, seen.end);
  const std::uint32_t group = args.n_heads / kv.n_kv_heads, first_query = chunk * Q;
  const std::uint32_t first_head = kv_head * group + first_query, n_queries = min(group - first_query, Q + 0u);
  for (std::uint32_t i = threadIdx.x; i < Q * kv.k_dim; i += k_threads) {
    const std::uint32_t query = min(i / kv.k_dim, n_queries - 1), e = i % kv.k_dim;
    shared.q[i / kv.k_dim * k_max_attention_dim + e] =
        args.q[static_cast<std::size_t>(row) * args.q_stride + (first_head + query) * kv.k_dim + e];
  }
  if (const std::uint32_t first = start + threadIdx.x * k_page_tokens;
      threadIdx.x < k_attention_segment / k_page_tokens && first < end && first + k_page_tokens > begin)
    shared.pages[threadIdx.x] = page_of(kv, kv.sequence_of[row], first);
  __syncthreads();
  const std::uint32_t position = start + threadIdx.x;
  const bool is_seen = position >= begin && position < end, is_q8 = kv.is_q8 != 0;
  const float nothing = -__int_as_float(0x7f800000);
  float scores[Q] = {};
  if (is_seen) {
    const std::uint8_t* key = shared.pages[threadIdx.x / k_page_tokens] +
                              head_place(kv_head, position, head_bytes(kv.k_dim, is_q8));
    if (is_q8) {
      score_q8<Q>(key, shared.q, kv.k_dim, scores);
    } else {
      score_f16<Q>(key, shared.q, kv.k_dim, scores);
    }
  }
  float maxima[Q], totals[Q];
#pragma unroll
  for (int i = 0; i < Q; ++i) {
    float s = scores[i] * args.scale;
    if (args.softcap != 0) s = args.softcap * tanhf(__fdiv_rn(s, args.softcap));
    maxima[i] = max_of_block(is_seen ? s : nothing, shared.reduce);
    const float weight = is_seen ? exponential(s - maxima[i]) : 0.0f;
    shared.weights[i][threadIdx.x] = weight;
    totals[i] = sum_of_block(weight, shared.reduce);
  }
  __syncthreads();
  add_values<Q>(args, kv_head, begin, end, shared);
  const std::uint32_t n_pairs = kv.v_dim / 2, n_groups = k_threads / n_pairs;
  for (std::uint32_t i = 0; i < n_queries; ++i) {
    float* to = partial_of(args, row, first_head + i, blockIdx.x);
    for (std::uint32_t pair = threadIdx.x; pair < n_pairs; pair += k_threads) {
      float2 sum = make_float2(0, 0);
      for (std::uint32_t g = 0; g < n_groups; ++g) {
        const float2 part = shared.sums[i][g * n_pairs + pair];
        sum.x += part.x;
        sum.y += part.y;
      }
      to[2 * pair] = sum.x;
      to[2 * pair + 1] = sum.y;
    }
  }
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < Q; ++i) {
      if (static_cast<std::uint32_t>(i) >= n_queries) break;
      float* to = partial_of(args, row, first_head + i, blockIdx.x);
      to[kv.v_dim] = maxima[i];
      to[kv.v_dim + 1] = totals[i];
    }
  }
}

/// One block: the segments of one row and head, in order.
__global__ void merge(const __grid_constant__ AttentionArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t row = blockIdx.y, head = blockIdx.x, dim = args.kv.v_dim;
  const Visible seen = visible(args, row);
  const std::uint32_t n = (seen.end - 1) / k_attention_segment - seen.first + 1;
  float* out = args.out + static_cast<std::size_t>(row) * args.out_stride + head * dim;
  for (std::uint32_t e = threadIdx.x; e < dim; e += blockDim.x) {
    float largest = -__int_as_float(0x7f800000), total = 0, sum = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      const float* part = partial_of(args, row, head, i);
      const float both = fmaxf(largest, part[dim]);
      const float old_factor = exponential(largest - both), factor = exponential(part[dim] - both);
      total = __fmaf_rn(part[dim + 1], factor, total * old_factor);
      sum = __fmaf_rn(part[e], factor, sum * old_factor);
      largest = both;
    }
    out[e] = total != 0 ? sum * __fdiv_rn(1.0f, total) : sum;
  }
}

}  // namespace

Kernel store_kv_kernel() noexcept { return make_kernel(store_kv, 256); }

Kernel attention_kernel(std::uint32_t n_queries) noexcept {
  if (n_queries == 1) return make_kernel(attend<1>, k_threads, 1);
  if (n_queries == 2) return make_kernel(attend<2>, k_threads, 2);
  if (n_queries <= 4) return make_kernel(attend<4>, k_threads, 4);
  return make_kernel(attend<8>, k_threads, 8);
}

Kernel merge_kernel() noexcept { return make_kernel(merge, 128); }

}  // namespace sluice::cuda
