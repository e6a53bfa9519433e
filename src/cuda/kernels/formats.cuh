#pragma once

// What a lane does with its piece of a weight row. Each format has
//   k_block, k_lanes  elements of a block, and lanes that share one (a lane has k_block / k_lanes elements)
//   k_has_min         a second sum for minimums
//   Raw, load()       the bytes of the piece; block index in the matrix, place among the block's lanes
//   Unpacked, unpack() quants as bytes, ready for dot products with activations
//   dot()             the exact integers of the piece with an activation row
//   scales()          the block's scale and the scale of minimums

#include "cuda/kernels/common.cuh"
#include "cuda/kernels/layout.hpp"

namespace sluice::cuda {

/// The activations of one row at a lane's piece.
struct Input {
  const std::int8_t* q;      ///< Of the step, at the lane.
  const std::int16_t* sums;  ///< Of the block; null for blocks of 32.
};

struct Sums {
  int dot = 0, min = 0;
};

__device__ inline uint4 read16(const void* p) {
  return __ldg(static_cast<const uint4*>(p));
}

/// Weights pass once: they shall not push activations out of the cache.
__device__ inline uint4 stream16(const void* p) {
  return __ldcs(static_cast<const uint4*>(p));
}

__device__ inline int dot16(const uint4& w, const uint4& x, int sum) {
  sum = __dp4a(static_cast<int>(w.x), static_cast<int>(x.x), sum);
  sum = __dp4a(static_cast<int>(w.y), static_cast<int>(x.y), sum);
  sum = __dp4a(static_cast<int>(w.z), static_cast<int>(x.z), sum);
  return __dp4a(static_cast<int>(w.w), static_cast<int>(x.w), sum);
}

template <class Function>
__device__ inline uint4 each_word(const uint4& v, Function f) {
  return make_uint4(f(v.x), f(v.y), f(v.z), f(v.w));
}

__device__ inline uint4 low_nibbles(const uint4& v) {
  return each_word(v, [](unsigned w) { return w & 0x0f0f0f0fu; });
}
__device__ inline uint4 high_nibbles(const uint4& v) {
  return each_word(v, [](unsigned w) { return (w >> 4) & 0x0f0f0f0fu; });
}

/// Scale and minimum of sub-blocks 2 j and 2 j + 1: bytes 0 and 1 of each.
__device__ inline void six_bits(const uint4& head, int j, unsigned& scales, unsigned& mins) {
  const int shift = 16 * (j & 1);
  const unsigned a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
  if (j < 2) {
    scales = a & 0x3f3fu;
    mins = b & 0x3f3fu;
  } else {
    scales = (c & 0x0f0fu) | ((a >> 2) & 0x3030u);
    mins = ((c >> 4) & 0x0f0fu) | ((b >> 2) & 0x3030u);
  }
}

/// Q4_K and Q5_K once quants are bytes: two sub-blocks of 32.
struct KMinUnpacked {
  uint4 q[4];
  unsigned scales, mins;
};

__device__ inline Sums dot_k_min(const KMinUnpacked& w, const Input& x, int sub) {
  int first = 0, second = 0;
  first = dot16(w.q[0], read16(x.q), first);
  first = dot16(w.q[1], read16(x.q + 512), first);
  second = dot16(w.q[2], read16(x.q + 1024), second);
  second = dot16(w.q[3], read16(x.q + 1536), second);
  const short4 s = __ldg(reinterpret_cast<const short4*>(x.sums + 4 * sub));
  Sums sums;
  sums.dot = static_cast<int>(w.scales & 255) * first + static_cast<int>(w.scales >> 8) * second;
  sums.min = static_cast<int>(w.mins & 255) * (s.x + s.y) + static_cast<int>(w.mins >> 8) * (s.z + s.w);
  return sums;
}

struct Q4K {
  static constexpr int k_type = 12, k_block = 256, k_lanes = 4;
  static constexpr bool k_has_min = true;
  struct Raw {
    uint4 head, q[2];
  };
  using Unpacked = KMinUnpacked;
  static __device__ Raw load(const MatrixRef& w, std::uint64_t block, int sub) {
    const std::uint8_t* p = w.base + block * 144;
    return {read16(p), {stream16(p + 16 + 32 * sub), stream16(p + 32 + 32 * sub)}};
  }
  static __device__ Unpacked unpack(const Raw& raw, int sub) {
    Unpacked w{{low_nibbles(raw.q[0]), low_nibbles(raw.q[1]), high_nibbles(raw.q[0]), high_nibbles(raw.q[1])},
               0,
               0};
    six_bits(raw.head, sub, w.scales, w.mins);
    return w;
  }
  static __device__ Sums dot(const Unpacked& w, const Input& x, int sub) { return dot_k_min(w, x, sub); }
  static __device__ float2 scales(const Raw& raw) {
    return make_float2(half_bits(raw.head.x), half_bits(raw.head.x >> 16));
  }
};

struct Q5K {
  static constexpr int k_type = 13, k_block = 256, k_lanes = 4;
  static constexpr bool k_has_min = true;
  struct Raw {
    uint4 head, high[2], q[2];
  };
  using Unpacked = KMinUnpacked;
  static __device__ Raw load(const MatrixRef& w, std::uint64_t block, int sub) {
    const std::uint8_t* p = w.base + block * 176;
    return {read16(p),
            {read16(p + 16), read16(p + 32)},
            {stream16(p + 48 + 32 * sub), stream16(p + 64 + 32 * sub)}};
  }
  static __device__ uint4 with_bit(const uint4& q, const uint4& high, int bit) {
    const auto f = [bit](unsigned w, unsigned h) { return w | (((h >> bit) & 0x01010101u) << 4); };
    return make_uint4(f(q.x, high.x), f(q.y, high.y), f(q.z, high.z), f(q.w, high.w));
  }
  static __device__ Unpacked unpack(const Raw& raw, int sub) {
    Unpacked w{{with_bit(low_nibbles(raw.q[0]), raw.high[0], 2 * sub),
                with_bit(low_nibbles(raw.q[1]), raw.high[1], 2 * sub),
                with_bit(high_nibbles(raw.q[0]), raw.high[0], 2 * sub + 1),
                with_bit(high_nibbles(raw.q[1]), raw.high[1], 2 * sub + 1)},
               0,
               0};
    six_bits(raw.head, sub, w.scales, w.mins);
    return w;
  }
  static __device__ Sums dot(const Unpacked& w, const Input& x, int sub) { return dot_k_min(w, x, sub); }
  static __device__ float2 scales(const Raw& raw) {
    return make_float2(half_bits(raw.head.x), half_bits(raw.head.x >> 16));
  }
};

/// Lane `sub` has 16 elements of each of the four runs of 32 of a half: half sub / 2, elements 16 (sub % 2) ...
struct Q6K {
  static constexpr int k_type = 14, k_block = 256, k_lanes = 4;
  static constexpr bool k_has_min = false;
  struct Raw {
    uint4 a, b, high;
    uint2 scales;
    unsigned short d;
  };
  struct Unpacked {
    uint4 q[4];
    int scale[4];
  };
  static __device__ Raw load(const MatrixRef& w, std::uint64_t block, int sub) {
    const std::uint8_t* low = w.base + block * 128 + 64 * (sub / 2) + 16 * (sub % 2);
    const std::uint8_t* high = w.base + w.n_blocks * 128 + block * 64 + 16 * sub;
    const std::uint8_t* scales = w.base + w.n_blocks * 192 + block * 16 + 8 * (sub / 2);
    const std::uint8_t* d = w.base + w.n_blocks * 208 + block * 2;
    return {stream16(low), stream16(low + 32), stream16(high), __ldg(reinterpret_cast<const uint2*>(scales)),
            __ldg(reinterpret_cast<const unsigned short*>(d))};
  }
  static __device__ Unpacked unpack(const Raw& raw, int sub) {
    const auto join = [](const uint4& low, const uint4& high, int shift) {
      const auto f = [shift](unsigned l, unsigned h) {
        return l | ((shift < 4 ? h << (4 - shift) : h >> (shift - 4)) & 0x30303030u);
      };
      return make_uint4(f(low.x, high.x), f(low.y, high.y), f(low.z, high.z), f(low.w, high.w));
    };
    Unpacked w{{join(low_nibbles(raw.a), raw.high, 0), join(low_nibbles(raw.b), raw.high, 2),
                join(high_nibbles(raw.a), raw.high, 4), join(high_nibbles(raw.b), raw.high, 6)},
               {}};
    const int shift = 8 * (sub % 2);
    w.scale[0] = static_cast<signed char>(raw.scales.x >> shift);
    w.scale[1] = static_cast<signed char>(raw.scales.x >> (16 + shift));
    w.scale[2] = static_cast<signed char>(raw.scales.y >> shift);
    w.scale[3] = static_cast<signed char>(raw.scales.y >> (16 + shift));
    return w;
  }
  static __device__ Sums dot(const Unpacked& w, const Input& x, int sub) {
    // Run k of the half is run 8 (sub / 2) + 2 k + sub % 2 of the block's 16; four runs belong to a lane's piece.
    const std::int8_t* block = x.q - 16 * sub;
    const uint4 s = read16(x.sums + 8 * (sub / 2));
    const int shift = 16 * (sub % 2);
    const int sums16[4] = {static_cast<short>(s.x >> shift), static_cast<short>(s.y >> shift),
                           static_cast<short>(s.z >> shift), static_cast<short>(s.w >> shift)};
    Sums sums;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int lane = 2 * (sub / 2) + k / 2, chunk = 2 * (k % 2) + sub % 2;
      const int part = dot16(w.q[k], read16(block + 512 * chunk + 16 * lane), -32 * sums16[k]);
      sums.dot += w.scale[k] * part;
    }
    return sums;
  }
  static __device__ float2 scales(const Raw& raw) { return make_float2(half_bits(raw.d), 0.0f); }
};

struct Q8_0 {
  static constexpr int k_type = 8, k_block = 32, k_lanes = 1;
  static constexpr bool k_has_min = false;
  struct Raw {
    uint4 q[2];
    unsigned short d;
  };
  using Unpacked = Raw;
  static __device__ Raw load(const MatrixRef& w, std::uint64_t block, int) {
    const std::uint8_t* q = w.base + block * 32;
    const std::uint8_t* d = w.base + w.n_blocks * 32 + block * 2;
    return {{stream16(q), stream16(q + 16)}, __ldg(reinterpret_cast<const unsigned short*>(d))};
  }
  static __device__ Unpacked unpack(const Raw& raw, int) { return raw; }
  static __device__ Sums dot(const Unpacked& w, const Input& x, int) {
    Sums sums;
    sums.dot = dot16(w.q[1], read16(x.q + 512), dot16(w.q[0], read16(x.q), 0));
    return sums;
  }
  static __device__ float2 scales(const Raw& raw) { return make_float2(half_bits(raw.d), 0.0f); }
};

/// Bytes whose products with x, added to those of the quants, take the offset of stored values away.
template <unsigned Offset>
__device__ inline int minus_offset(const uint4& x, int sum) {
  constexpr unsigned bytes = (256 - Offset) * 0x01010101u;
  return dot16(make_uint4(bytes, bytes, bytes, bytes), x, sum);
}

struct Q4_0 {
  static constexpr int k_type = 2, k_block = 32, k_lanes = 1;
  static constexpr bool k_has_min = false;
  struct Raw {
    uint4 q;
    unsigned short d;
  };
  using Unpacked = Raw;
  static __device__ Raw load(const MatrixRef& w, std::uint64_t block, int) {
    const std::uint8_t* d = w.base + w.n_blocks * 16 + block * 2;
    return {stream16(w.base + block * 16), __ldg(reinterpret_cast<const unsigned short*>(d))};
  }
  static __device__ Unpacked unpack(const Raw& raw, int) { return raw; }
  static __device__ Sums dot(const Unpacked& w, const Input& x, int) {
    const uint4 first = read16(x.q), second = read16(x.q + 512);
    Sums sums;
    sums.dot = dot16(low_nibbles(w.q), first, minus_offset<8>(first, 0));
    sums.dot = dot16(high_nibbles(w.q), second, minus_offset<8>(second, sums.dot));
    return sums;
  }
  static __device__ float2 scales(const Raw& raw) { return make_float2(half_bits(raw.d), 0.0f); }
};

/// As Q4_0, with bit e of the high word as the fifth bit of element e.
struct Q5_0 {
  static constexpr int k_type = 6, k_block = 32, k_lanes = 1;
  static constexpr bool k_has_min = false;
  struct Raw {
    uint4 q;
    unsigned high;
    unsigned short d;
  };
  using Unpacked = Raw;
  static __device__ Raw load(const MatrixRef& w, std::uint64_t block, int) {
    const std::uint8_t* high = w.base + w.n_blocks * 16 + block * 4;
    const std::uint8_t* d = w.base + w.n_blocks * 20 + block * 2;
    return {stream16(w.base + block * 16), __ldg(reinterpret_cast<const unsigned*>(high)),
            __ldg(reinterpret_cast<const unsigned short*>(d))};
  }
  static __device__ Unpacked unpack(const Raw& raw, int) { return raw; }
  /// Four bits become bit 4 of four bytes.
  static __device__ unsigned spread(unsigned bits) { return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4; }
  static __device__ uint4 with_bits(const uint4& q, unsigned bits) {
    return make_uint4(q.x | spread(bits), q.y | spread(bits >> 4), q.z | spread(bits >> 8), q.w | spread(bits >> 12));
  }
  static __device__ Sums dot(const Unpacked& w, const Input& x, int) {
    const uint4 first = read16(x.q), second = read16(x.q + 512);
    Sums sums;
    sums.dot = dot16(with_bits(low_nibbles(w.q), w.high), first, minus_offset<16>(first, 0));
    sums.dot = dot16(with_bits(high_nibbles(w.q), w.high >> 16), second, minus_offset<16>(second, sums.dot));
    return sums;
  }
  static __device__ float2 scales(const Raw& raw) { return make_float2(half_bits(raw.d), 0.0f); }
};

struct Mxfp4 {
  static constexpr int k_type = 39, k_block = 32, k_lanes = 1;
  static constexpr bool k_has_min = false;
  struct Raw {
    uint4 q;
    unsigned e;
  };
  struct Unpacked {
    uint4 q[2];
  };
  static __device__ Raw load(const MatrixRef& w, std::uint64_t block, int) {
    return {stream16(w.base + block * 16), __ldg(w.base + w.n_blocks * 16 + block)};
  }
  /// Bytes for the four nibbles in the low half: the table of twice the E2M1 values has eight magnitudes, then
  /// their negatives.
  static __device__ unsigned look_up(unsigned nibbles) {
    const unsigned positive = __byte_perm(0x03020100u, 0x0c080604u, nibbles & 0x7777u);
    const unsigned negative = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, nibbles & 0x7777u);
    return __byte_perm(positive, negative, 0x3210u | ((nibbles & 0x8888u) >> 1));
  }
  static __device__ Unpacked unpack(const Raw& raw, int) {
    return {{make_uint4(look_up(raw.q.x), look_up(raw.q.x >> 16), look_up(raw.q.y), look_up(raw.q.y >> 16)),
             make_uint4(look_up(raw.q.z), look_up(raw.q.z >> 16), look_up(raw.q.w), look_up(raw.q.w >> 16))}};
  }
  static __device__ Sums dot(const Unpacked& w, const Input& x, int) {
    Sums sums;
    sums.dot = dot16(w.q[1], read16(x.q + 512), dot16(w.q[0], read16(x.q), 0));
    return sums;
  }
  static __device__ float2 scales(const Raw& raw) {
    const unsigned bits = raw.e < 2 ? 0x00200000u << raw.e : (raw.e - 1) << 23;
    return make_float2(__uint_as_float(bits), 0.0f);
  }
};

/// Plain numbers, eight at a time.
struct F32 {
  static constexpr int k_type = 0, k_bytes = 4;
  static __device__ void load8(const std::uint8_t* p, float (&to)[8]) {
    const float4 a = __ldg(reinterpret_cast<const float4*>(p)), b = __ldg(reinterpret_cast<const float4*>(p) + 1);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  }
  static __device__ float load1(const std::uint8_t* p) { return *reinterpret_cast<const float*>(p); }
};

struct F16 {
  static constexpr int k_type = 1, k_bytes = 2;
  static __device__ void load8(const std::uint8_t* p, float (&to)[8]) {
    const uint4 v = stream16(p);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = half_bits(words[i]);
      to[2 * i + 1] = half_bits(words[i] >> 16);
    }
  }
  static __device__ float load1(const std::uint8_t* p) {
    return half_bits(*reinterpret_cast<const unsigned short*>(p));
  }
};

struct Bf16 {
  static constexpr int k_type = 30, k_bytes = 2;
  static __device__ void load8(const std::uint8_t* p, float (&to)[8]) {
    const uint4 v = stream16(p);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  static __device__ float load1(const std::uint8_t* p) {
    return __uint_as_float(static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(p)) << 16);
  }
};

}  // namespace sluice::cuda
