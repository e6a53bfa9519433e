// Products with many activation rows on tensor cores: integers of 8 bits, exact for each 32 (or 16) elements that share
// a scale; then the arithmetic of row_group.cuh, so the same bits.

#include "cuda/kernels/formats.cuh"

namespace sluice::cuda {
namespace {

constexpr int k_tile_rows = 64, k_tile_x = 64, k_step = 256, k_threads = 256;
constexpr int k_pitch = k_step + 16;  // Rows of a tile begin in different banks.
constexpr int k_subs = k_step / 32;

__device__ inline void load_matrix4(unsigned (&to)[4], const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(from));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

/// 16 rows by 8 columns, 32 elements each, from zero.
__device__ inline void multiply32(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

/// The same with 16 elements.
__device__ inline void multiply16(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

/// One step of 256 elements of the weights and of the activations.
struct Tile {
  alignas(16) std::int8_t w[k_tile_rows][k_pitch];
  alignas(16) std::int8_t x[k_tile_x][k_pitch];
  float d_w[k_tile_rows][k_subs], d_min[k_tile_rows];
  float d_x[k_tile_x][k_subs];
  alignas(8) std::int8_t scales[k_tile_rows][16];
  alignas(8) std::int8_t mins[k_tile_rows][8];
  alignas(8) std::int8_t low[k_tile_x][8], high[k_tile_x][8];  ///< Sums of 32: low + 128 * high.
};

__device__ inline uint4 minus32(const uint4& q) {
  return each_word(q, [](unsigned w) {
    const unsigned t = w ^ 0x20202020u;
    return t | (t & 0x20202020u) * 6u;
  });
}
template <unsigned Offset>
__device__ inline uint4 minus(const uint4& q) {
  return each_word(q, [](unsigned w) { return ((w | 0x80808080u) - Offset * 0x01010101u) ^ 0x80808080u; });
}

__device__ inline void put16(std::int8_t* to, const uint4& v) { *reinterpret_cast<uint4*>(to) = v; }

// What a thread puts of its piece: row `r` of the tile, place `at` in the step.

template <class F>
__device__ inline void put_k_min(const F&, Tile& tile, int r, int sub, const typename F::Raw& raw) {
  const typename F::Unpacked w = F::unpack(raw, sub);
#pragma unroll
  for (int i = 0; i < 4; ++i) put16(&tile.w[r][64 * sub + 16 * i], w.q[i]);
  *reinterpret_cast<unsigned short*>(&tile.scales[r][2 * sub]) = static_cast<unsigned short>(w.scales);
  *reinterpret_cast<unsigned short*>(&tile.mins[r][2 * sub]) = static_cast<unsigned short>(w.mins);
  if (sub == 0) {
    const float2 d = F::scales(raw);
    tile.d_w[r][0] = d.x;
    tile.d_min[r] = d.y;
  }
}
__device__ inline void put(Tile& tile, int r, int sub, const Q4K::Raw& raw) { put_k_min(Q4K(), tile, r, sub, raw); }
__device__ inline void put(Tile& tile, int r, int sub, const Q5K::Raw& raw) { put_k_min(Q5K(), tile, r, sub, raw); }
__device__ inline void put(Tile& tile, int r, int sub, const Q6K::Raw& raw) {
  const Q6K::Unpacked w = Q6K::unpack(raw, sub);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int run = 8 * (sub / 2) + 2 * k + sub % 2;
    put16(&tile.w[r][16 * run], minus32(w.q[k]));
    tile.scales[r][run] = static_cast<std::int8_t>(w.scale[k]);
  }
  if (sub == 0) tile.d_w[r][0] = Q6K::scales(raw).x;
}
__device__ inline void put(Tile& tile, int r, int block, const Q8_0::Raw& raw) {
  put16(&tile.w[r][32 * block], raw.q[0]);
  put16(&tile.w[r][32 * block + 16], raw.q[1]);
  tile.d_w[r][block] = Q8_0::scales(raw).x;
}
__device__ inline void put(Tile& tile, int r, int block, const Mxfp4::Raw& raw) {
  const Mxfp4::Unpacked w = Mxfp4::unpack(raw, 0);
  put16(&tile.w[r][32 * block], w.q[0]);
  put16(&tile.w[r][32 * block + 16], w.q[1]);
  tile.d_w[r][block] = Mxfp4::scales(raw).x;
}
__device__ inline void put(Tile& tile, int r, int block, const Q4_0::Raw& raw) {
  put16(&tile.w[r][32 * block], minus<8>(low_nibbles(raw.q)));
  put16(&tile.w[r][32 * block + 16], minus<8>(high_nibbles(raw.q)));
  tile.d_w[r][block] = Q4_0::scales(raw).x;
}
__device__ inline void put(Tile& tile, int r, int block, const Q5_0::Raw& raw) {
  put16(&tile.w[r][32 * block], minus<16>(Q5_0::with_bits(low_nibbles(raw.q), raw.high)));
  put16(&tile.w[r][32 * block + 16], minus<16>(Q5_0::with_bits(high_nibbles(raw.q), raw.high >> 16)));
  tile.d_w[r][block] = Q5_0::scales(raw).x;
}

/// Blocks of 256: a thread has 64 elements. Blocks of 32: two times 32.
template <class F>
constexpr int k_pieces = F::k_block == 256 ? 1 : 2;

template <class F>
struct Pieces {
  typename F::Raw raw[k_pieces<F>];
};

/// Of the row and step of this thread; `first`: the row's first block.
template <class F>
__device__ inline void load_pieces(Pieces<F>& pieces, const MatrixRef& w, std::uint64_t first, int step, int n_blocks) {
  if constexpr (F::k_block == 256) {
    pieces.raw[0] = F::load(w, first + step, threadIdx.x % 4);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int block = min(8 * step + static_cast<int>(threadIdx.x % 4) * 2 + i, n_blocks - 1);
      pieces.raw[i] = F::load(w, first + block, 0);
    }
  }
}

template <class F>
__device__ inline void put_pieces(Tile& tile, const Pieces<F>& pieces) {
  const int r = threadIdx.x / 4, part = threadIdx.x % 4;
  if constexpr (F::k_block == 256) {
    put(tile, r, part, pieces.raw[0]);
  } else {
    put(tile, r, 2 * part, pieces.raw[0]);
    put(tile, r, 2 * part + 1, pieces.raw[1]);
  }
}

/// The activations of a step.
template <class F>
__device__ inline void put_input(Tile& tile, const ProductArgs& args, std::uint32_t first_x, int step) {
  constexpr int piece = F::k_block == 256 ? 64 : 32;  // Elements of a lane (layout.hpp).
  constexpr int steps_of_layout = 32 * piece / k_step;
  const QuantizedRows& x = args.x;
  for (int unit = threadIdx.x; unit < k_tile_x * 16; unit += k_threads) {
    const int t = unit / 16, at = unit % 16 * 16;
    const std::size_t row = min(first_x + t, args.n_rows - 1);
    const int lane = (step % steps_of_layout) * (k_step / piece) + at / piece;
    const std::int8_t* from = x.q + row * x.q_stride + static_cast<std::size_t>(step / steps_of_layout) * 32 * piece +
                              at % piece / 16 * 512 + lane * 16;
    put16(&tile.x[t][at], read16(from));
  }
  if constexpr (F::k_block == 256) {
    for (int t = threadIdx.x; t < k_tile_x; t += k_threads) {
      const std::size_t row = min(first_x + t, args.n_rows - 1);
      tile.d_x[t][0] = x.d[row * x.d_stride + step];
      if constexpr (F::k_has_min) {
        const std::int16_t* sums = x.sums + row * x.sum_stride + 16 * step;
        for (int s = 0; s < 8; ++s) {
          const int sum = sums[2 * s] + sums[2 * s + 1];
          tile.low[t][s] = static_cast<std::int8_t>(sum & 127);
          tile.high[t][s] = static_cast<std::int8_t>(sum >> 7);
        }
      }
    }
  } else {
    for (int i = threadIdx.x; i < k_tile_x * k_subs; i += k_threads) {
      const std::size_t row = min(first_x + i / k_subs, args.n_rows - 1);
      const int block = min(8 * step + i % k_subs, static_cast<int>(args.blocks_per_row) - 1);
      tile.d_x[i / k_subs][i % k_subs] = x.d[row * x.d_stride + block];
    }
  }
}

constexpr int k_n_tiles = 4;  // Of eight activation rows, for each warp.

/// What a block of 256 adds, once its integers are known.
template <class F>
__device__ inline void add_block(const Tile& tile, const int (&total)[k_n_tiles][4], int w_row, int x_row,
                                 float (&y)[k_n_tiles][4]) {
  const int lane = threadIdx.x % k_warp, g = lane / 4, pair = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < k_n_tiles; ++n) {
    int low[4] = {}, high[4] = {};
    if constexpr (F::k_has_min) {
      // Eight elements of sixteen; the other lanes have zeros.
      const int word = lane % 4;
      const auto words = [&](const std::int8_t (&row)[8]) {
        return word < 2 ? reinterpret_cast<const unsigned*>(row)[word] : 0u;
      };
      const unsigned a0 = words(tile.mins[w_row + g]), a1 = words(tile.mins[w_row + g + 8]);
      multiply16(low, a0, a1, words(tile.low[x_row + 8 * n + g]));
      multiply16(high, a0, a1, words(tile.high[x_row + 8 * n + g]));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = w_row + g + e / 2 * 8;
      const float d_x = tile.d_x[x_row + 8 * n + pair + e % 2][0];
      y[n][e] = __fmaf_rn(static_cast<float>(total[n][e]), tile.d_w[row][0] * d_x, y[n][e]);
      if constexpr (F::k_has_min)
        y[n][e] = __fmaf_rn(-static_cast<float>(low[e] + 128 * high[e]), tile.d_min[row] * d_x, y[n][e]);
    }
  }
}

/// The sums of one warp: 16 weight rows by 32 activation rows.
template <class F>
__device__ inline void multiply_tile(const Tile& tile, int n_subs, int w_row, int x_row, float (&y)[k_n_tiles][4]) {
  const int lane = threadIdx.x % k_warp, g = lane / 4, pair = lane % 4 * 2;
  int total[k_n_tiles][4] = {};
  for (int s = 0; s < n_subs; ++s) {
    unsigned a[4];
    load_matrix4(a, &tile.w[w_row + lane % 16][32 * s + lane / 16 * 16]);
    int scales[2][2];  // Of rows g and g + 8, of both halves.
    float d_w[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = w_row + g + 8 * r;
      if constexpr (F::k_type == Q6K::k_type) {
        scales[r][0] = tile.scales[row][2 * s];
        scales[r][1] = tile.scales[row][2 * s + 1];
      } else if constexpr (F::k_block == 256) {
        scales[r][0] = tile.scales[row][s];
      } else {
        d_w[r] = tile.d_w[row][s];
      }
    }
#pragma unroll
    for (int two = 0; two < k_n_tiles / 2; ++two) {
      unsigned b[4];
      load_matrix4(b, &tile.x[x_row + 16 * two + lane % 8 + lane / 16 * 8][32 * s + lane / 8 % 2 * 16]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = 2 * two + i;
        int c[4];
        if constexpr (F::k_type == Q6K::k_type) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            multiply16(c, a[2 * half], a[2 * half + 1], b[2 * i + half]);
#pragma unroll
            for (int e = 0; e < 4; ++e) total[n][e] += scales[e / 2][half] * c[e];
          }
        } else {
          multiply32(c, a, b[2 * i], b[2 * i + 1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if constexpr (F::k_block == 256) {
              total[n][e] += scales[e / 2][0] * c[e];
            } else {
              const float scale = d_w[e / 2] * tile.d_x[x_row + 8 * n + pair + e % 2][s];
              y[n][e] = __fmaf_rn(static_cast<float>(c[e]), scale, y[n][e]);
            }
          }
        }
      }
    }
  }
  if constexpr (F::k_block == 256) add_block<F>(tile, total, w_row, x_row, y);
}

template <class F>
__global__ void __launch_bounds__(k_threads) product_mma(const __grid_constant__ ProductArgs args) {
  __shared__ Tile tile;
  std::uint32_t i = 0, first_group = 0;
  while (i + 1 < args.n_parts && blockIdx.y >= args.parts[i].end_group) first_group = args.parts[i++].end_group;
  const ProductArgs::Part& part = args.parts[i];
  const std::uint32_t first_row = (blockIdx.y - first_group) * k_tile_rows, first_x = blockIdx.x * k_tile_x;
  const int n_blocks = static_cast<int>(args.blocks_per_row), blocks_of_step = k_step / F::k_block;
  const std::uint64_t own_row = min(first_row + threadIdx.x / 4, part.n_out - 1);
  const std::uint64_t first = part.w.first_block + own_row * args.blocks_per_row;
  const int warp = threadIdx.x / k_warp, lane = threadIdx.x % k_warp;
  const int w_row = warp % 4 * 16, x_row = warp / 4 * 32;
  float y[k_n_tiles][4] = {};
  Pieces<F> pieces;
  load_pieces<F>(pieces, part.w, first, 0, n_blocks);
  let_next_start();
  wait_for_previous();
  const int n_steps = (n_blocks + blocks_of_step - 1) / blocks_of_step;
  for (int step = 0; step < n_steps; ++step) {
    put_pieces<F>(tile, pieces);
    put_input<F>(tile, args, first_x, step);
    __syncthreads();
    if (step + 1 < n_steps) load_pieces<F>(pieces, part.w, first, step + 1, n_blocks);
    const int n_subs = F::k_block == 256 ? k_subs : min(k_subs, n_blocks - 8 * step);
    multiply_tile<F>(tile, n_subs, w_row, x_row, y);
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < k_n_tiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::uint32_t row = first_row + w_row + lane / 4 + e / 2 * 8;
      const std::uint32_t x = first_x + x_row + 8 * n + lane % 4 * 2 + e % 2;
      if (row >= part.n_out || x >= args.n_rows) continue;
      float value = y[n][e];
      if (part.scale != 1.0f) value *= part.scale;
      if (part.bias != nullptr) value += part.bias[row];
      part.y[static_cast<std::size_t>(x) * part.y_stride + row] = value;
      if (part.sum != nullptr) part.sum[static_cast<std::size_t>(x) * part.sum_stride + row] += value;
    }
  }
}

template <class F>
Kernel make_mma() noexcept {
  Kernel kernel = make_kernel(product_mma<F>, k_threads, k_tile_rows);
  kernel.tile = k_tile_x;
  return kernel;
}

}  // namespace

Kernel product_mma_kernel(int type) noexcept {
  switch (type) {
    case Q4K::k_type:
      return make_mma<Q4K>();
    case Q5K::k_type:
      return make_mma<Q5K>();
    case Q6K::k_type:
      return make_mma<Q6K>();
    case Q8_0::k_type:
      return make_mma<Q8_0>();
    case Q4_0::k_type:
      return make_mma<Q4_0>();
    case Q5_0::k_type:
      return make_mma<Q5_0>();
    case Mxfp4::k_type:
      return make_mma<Mxfp4>();
    default:
      return {};
  }
}

}  // namespace sluice::cuda
