// Weights as they lie on the device, and rows of them as floats.

#include "cuda/kernels/formats.cuh"

namespace sluice::cuda {
namespace {

/// The byte `at` of block `block` of a type that is taken apart: where it goes.
template <int... Bytes>
__device__ inline std::uint64_t plane_place(std::uint64_t n_blocks, std::uint64_t block, int at) {
  constexpr int sizes[] = {Bytes...};
  std::uint64_t base = 0;
  for (const int size : sizes) {
    if (at < size) return base + block * size + at;
    base += n_blocks * size;
    at -= size;
  }
  return base;
}

/// One thread, one byte of the result.
template <int BlockBytes, class Function>
__device__ inline void for_bytes(const RepackArgs& args, Function f) {
  const std::uint64_t n = args.n_blocks * BlockBytes;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    f(i / BlockBytes, static_cast<int>(i % BlockBytes));
  }
}

__global__ void repack_q8_0(const __grid_constant__ RepackArgs args) {
  for_bytes<34>(args, [&](std::uint64_t block, int at) {  // In the file the scale comes first.
    const std::uint8_t byte = args.from[block * 34 + (at < 32 ? at + 2 : at - 32)];
    args.to[plane_place<32, 2>(args.n_total, args.first_block + block, at)] = byte;
  });
}

__global__ void repack_q4_0(const __grid_constant__ RepackArgs args) {
  for_bytes<18>(args, [&](std::uint64_t block, int at) {
    const std::uint8_t byte = args.from[block * 18 + (at < 16 ? at + 2 : at - 16)];
    args.to[plane_place<16, 2>(args.n_total, args.first_block + block, at)] = byte;
  });
}

__global__ void repack_q5_0(const __grid_constant__ RepackArgs args) {
  for_bytes<22>(args, [&](std::uint64_t block, int at) {  // In the file: d, the fifth bits, quants.
    const int from = at < 16 ? at + 6 : at < 20 ? at - 14 : at - 20;
    args.to[plane_place<16, 4, 2>(args.n_total, args.first_block + block, at)] = args.from[block * 22 + from];
  });
}

__global__ void repack_q6_k(const __grid_constant__ RepackArgs args) {
  for_bytes<210>(args, [&](std::uint64_t block, int at) {
    args.to[plane_place<128, 64, 16, 2>(args.n_total, args.first_block + block, at)] = args.from[block * 210 + at];
  });
}

__global__ void repack_mxfp4(const __grid_constant__ RepackArgs args) {
  for_bytes<17>(args, [&](std::uint64_t block, int at) {
    const std::uint8_t* from = args.from + block * 17;
    std::uint8_t byte = from[0];
    if (at < 16) {
      // Elements 2 at and 2 at + 1: in the file the low nibbles are the first half of the block.
      const int e = 2 * at, shift = e < 16 ? 0 : 4;
      const unsigned low = from[1 + e % 16] >> shift & 15, high = from[1 + (e + 1) % 16] >> shift & 15;
      byte = static_cast<std::uint8_t>(low | high << 4);
    }
    args.to[plane_place<16, 1>(args.n_total, args.first_block + block, at)] = byte;
  });
}

/// Element `e` of block `block`.
__device__ float element(const MatrixRef& w, int type, std::uint64_t block, int e) {
  switch (type) {
    case F32::k_type:
      return F32::load1(w.base + block * 4);
    case F16::k_type:
      return F16::load1(w.base + block * 2);
    case Bf16::k_type:
      return Bf16::load1(w.base + block * 2);
    case Q8_0::k_type: {
      const auto q = static_cast<signed char>(w.base[block * 32 + e]);
      const auto* d = reinterpret_cast<const unsigned short*>(w.base + w.n_blocks * 32);
      return half_bits(d[block]) * static_cast<float>(q);
    }
    case Q4_0::k_type:
    case Q5_0::k_type: {
      const bool is_q5 = type == Q5_0::k_type;
      unsigned q = w.base[block * 16 + e % 16] >> 4 * (e / 16) & 15;
      if (is_q5) q |= (reinterpret_cast<const unsigned*>(w.base + w.n_blocks * 16)[block] >> e & 1u) << 4;
      const auto* d = reinterpret_cast<const unsigned short*>(w.base + w.n_blocks * (is_q5 ? 20 : 16));
      return half_bits(d[block]) * static_cast<float>(static_cast<int>(q) - (is_q5 ? 16 : 8));
    }
    case Mxfp4::k_type: {
      const unsigned nibble = w.base[block * 16 + e / 2] >> 4 * (e % 2) & 15;
      const auto q = static_cast<signed char>(Mxfp4::look_up(nibble));
      return Mxfp4::scales({{}, w.base[w.n_blocks * 16 + block]}).x * static_cast<float>(q);
    }
    case Q6K::k_type: {
      const int half = e / 128, part = e % 128 / 32, l = e % 32;
      const unsigned low = w.base[block * 128 + 64 * half + 32 * (part % 2) + l] >> 4 * (part / 2) & 15;
      const unsigned high = w.base[w.n_blocks * 128 + block * 64 + 32 * half + l] >> 2 * part & 3;
      const auto scale = static_cast<signed char>(w.base[w.n_blocks * 192 + block * 16 + e / 16]);
      const auto* d = reinterpret_cast<const unsigned short*>(w.base + w.n_blocks * 208);
      return half_bits(d[block]) * static_cast<float>(scale) *
             static_cast<float>(static_cast<int>(low | high << 4) - 32);
    }
    default:
      break;
  }
  const bool is_q5 = type == Q5K::k_type;
  const std::uint8_t* p = w.base + block * (is_q5 ? 176 : 144);
  const uint4 head = *reinterpret_cast<const uint4*>(p);
  const int g = e / 32, l = e % 32;
  unsigned scales, mins;
  six_bits(head, g / 2, scales, mins);
  unsigned q = p[(is_q5 ? 48 : 16) + 32 * (g / 2) + l] >> 4 * (g % 2) & 15;
  if (is_q5) q |= (p[16 + l] >> g & 1u) << 4;
  const float scale = half_bits(head.x) * static_cast<float>(scales >> 8 * (g % 2) & 255);
  const float min = half_bits(head.x >> 16) * static_cast<float>(mins >> 8 * (g % 2) & 255);
  return scale * static_cast<float>(q) - min;
}

__global__ void embed(const __grid_constant__ EmbedArgs args) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= args.n_cols) return;
  const std::uint32_t block_elements = args.n_cols / args.blocks_per_row;
  const std::uint64_t block = args.table.first_block +
                              static_cast<std::uint64_t>(args.ids[row]) * args.blocks_per_row +
                              column / block_elements;
  args.y[static_cast<std::size_t>(row) * args.y_stride + column] =
      element(args.table, static_cast<int>(args.type), block, static_cast<int>(column % block_elements));
}

}  // namespace

Kernel repack_kernel(int type) noexcept {
  constexpr std::uint32_t threads = 256;
  if (type == Q4_0::k_type) return make_kernel(repack_q4_0, threads);
  if (type == Q5_0::k_type) return make_kernel(repack_q5_0, threads);
  if (type == Q8_0::k_type) return make_kernel(repack_q8_0, threads);
  if (type == Q6K::k_type) return make_kernel(repack_q6_k, threads);
  if (type == Mxfp4::k_type) return make_kernel(repack_mxfp4, threads);
  return {};
}

Kernel embed_kernel() noexcept { return make_kernel(embed, 256); }

}  // namespace sluice::cuda
