#include "kernels/quant.hpp"
#include "kernels/vector_math.hpp"
#include "kernels/vector_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_math.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/vector_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace {

// The scalar target has one lane, all others at most 16: a multiple of 16 floats is whole vectors on each.
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

void widen(const std::uint16_t* src, std::size_t n_rows, std::size_t n, float* dst,
           std::size_t dst_stride) noexcept {
  if (n == dst_stride) {  // One run of whole vectors.
    n *= n_rows;
    dst_stride = n;
    n_rows = 1;
  }
  for (std::size_t row = 0; row < n_rows; ++row, src += n, dst += dst_stride) {
    std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
    const Floats d;
    const hn::Rebind<hwy::float16_t, Floats> half;
    const hn::Rebind<std::uint16_t, Floats> bits;
    const std::size_t lanes = hn::Lanes(d);
    const auto convert = [&](std::size_t at) {
      hn::Store(hn::PromoteTo(d, hn::BitCast(half, hn::LoadU(bits, src + at))), d, dst + at);
    };
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      convert(i);
      convert(i + lanes);
      convert(i + 2 * lanes);
      convert(i + 3 * lanes);
    }
    for (; i + lanes <= n; i += lanes) convert(i);
#endif
    for (; i < n; ++i) dst[i] = f16_to_f32(src[i]);
    for (; i < dst_stride; ++i) dst[i] = 0.0f;
  }
}

constexpr std::size_t k_q8_block = 32, k_q8_block_bytes = 34;

/// The f16 at `from`, in all lanes. Reads 8 bytes.
HWY_INLINE Vector scale_at(const std::byte* from) {
  const Floats d;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, from, sizeof bits);
  return hn::Set(d, f16_to_f32(bits));
#else
  const hn::FixedTag<float, 4> four;
  const hn::Rebind<hwy::float16_t, hn::FixedTag<float, 4>> half;
  const hn::FixedTag<std::uint16_t, 4> bits;
  std::uint16_t words[4];
  __builtin_memcpy(words, from, sizeof words);
  return hn::Set(d, hn::GetLane(hn::PromoteTo(four, hn::BitCast(half, hn::LoadU(bits, words)))));
#endif
}

void widen_q8(const std::byte* src, std::size_t n_rows, std::size_t n, float* dst) noexcept {
  const Floats d;
  const hn::RebindToSigned<Floats> integers;
  const hn::Rebind<std::int8_t, Floats> bytes;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t block = n_rows * n / k_q8_block; block > 0; --block, src += k_q8_block_bytes) {
    const auto scale = scale_at(src);
    const auto* q = reinterpret_cast<const std::int8_t*>(src + 2);
    for (std::size_t i = 0; i < k_q8_block; i += lanes, dst += lanes) {
      const auto value = hn::ConvertTo(d, hn::PromoteTo(integers, hn::LoadU(bytes, q + i)));
      hn::Store(hn::Mul(value, scale), d, dst);
    }
  }
}

void to_q8(const float* x, std::byte* y, std::size_t n) noexcept {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> bytes;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t at = 0; at < n; at += k_q8_block, y += k_q8_block_bytes) {
    auto largest = hn::Zero(d);
    for (std::size_t i = 0; i < k_q8_block; i += lanes)
      largest = larger(hn::Abs(hn::LoadU(d, x + at + i)), largest);
    alignas(64) float by_lane[16];
    hn::Store(largest, d, by_lane);
    float top = by_lane[0];
    for (std::size_t lane = 1; lane < lanes; ++lane)
      top = top > by_lane[lane] || top != top ? top : by_lane[lane];
    const std::uint16_t bits = f32_to_f16(top / 127.0f);
    const float scale = f16_to_f32(bits);
    __builtin_memcpy(y, &bits, sizeof bits);
    // Where the scale is infinite or NaN, the integers do not matter.
    const auto inverse = hn::Set(d, scale > 0 ? 1.0f / scale : 0.0f);
    auto* q = reinterpret_cast<std::int8_t*>(y + 2);
    for (std::size_t i = 0; i < k_q8_block; i += lanes) {
      const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, x + at + i), inverse));
      hn::StoreU(hn::DemoteTo(bytes, rounded), bytes, q + i);
    }
  }
}

// Sums the lanes of several vectors at once: lane k of the result is the sum of vector k. One tree for every
// k, so a key's score does not depend on its place in the block.
#if HWY_TARGET != HWY_SCALAR
/// Of four vectors: in each block of four lanes, lane k is the sum of that block of vector k.
template <class D>
HWY_INLINE hn::Vec<D> sum_within_blocks(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e) {
  const hn::RepartitionToWide<D> dw;
  const auto ab = hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, ab, ce)),
                 hn::BitCast(d, hn::InterleaveUpper(dw, ab, ce)));
}
#endif

#if HWY_TARGET == HWY_SCALAR
constexpr std::size_t k_keys_at_once = 1;
HWY_INLINE Vector sum_lanes(Floats, const Vector* v) {
  return v[0];
}
#elif HWY_TARGET == HWY_AVX3
constexpr std::size_t k_keys_at_once = 16;
HWY_INLINE Vector sum_lanes(Floats d, const Vector* v) {
  const auto keys0 = sum_within_blocks(d, v[0], v[1], v[2], v[3]);
  const auto keys4 = sum_within_blocks(d, v[4], v[5], v[6], v[7]);
  const auto keys8 = sum_within_blocks(d, v[8], v[9], v[10], v[11]);
  const auto keys12 = sum_within_blocks(d, v[12], v[13], v[14], v[15]);
  // Blocks of the two sums: (0, 0, 8, 8) and (4, 4, 12, 12), halves of the sums beside each other.
  const auto keys0_8 = hn::Add(hn::ConcatLowerLower(d, keys8, keys0), hn::ConcatUpperUpper(d, keys8, keys0));
  const auto keys4_12 =
      hn::Add(hn::ConcatLowerLower(d, keys12, keys4), hn::ConcatUpperUpper(d, keys12, keys4));
  const auto even = hn::Add(keys0_8, hn::SwapAdjacentBlocks(keys0_8));
  const auto odd = hn::Add(keys4_12, hn::SwapAdjacentBlocks(keys4_12));
  return hn::OddEvenBlocks(odd, even);
}
#elif HWY_TARGET == HWY_AVX2
constexpr std::size_t k_keys_at_once = 8;
HWY_INLINE Vector sum_lanes(Floats d, const Vector* v) {
  const auto keys0 = sum_within_blocks(d, v[0], v[1], v[2], v[3]);
  const auto keys4 = sum_within_blocks(d, v[4], v[5], v[6], v[7]);
  return hn::Add(hn::ConcatLowerLower(d, keys4, keys0), hn::ConcatUpperUpper(d, keys4, keys0));
}
#else
constexpr std::size_t k_keys_at_once = 4;
HWY_INLINE Vector sum_lanes(Floats d, const Vector* v) {
  return sum_within_blocks(d, v[0], v[1], v[2], v[3]);
}
#endif

void score(const float* keys, const float* queries, std::size_t n_queries, std::size_t stride,
           float* scores) noexcept {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t query = 0; query < n_queries; ++query, queries += stride, scores += k_segment) {
    for (std::size_t key = 0; key < k_key_block; key += k_keys_at_once) {
      const float* block = keys + key * stride;
      Vector sums[k_keys_at_once];
#pragma GCC unroll 16
      for (std::size_t k = 0; k < k_keys_at_once; ++k) sums[k] = hn::Zero(d);
      for (std::size_t i = 0; i < stride; i += lanes) {
        const auto q = hn::Load(d, queries + i);
#pragma GCC unroll 16
        for (std::size_t k = 0; k < k_keys_at_once; ++k) {
          sums[k] = hn::MulAdd(q, hn::Load(d, block + k * stride + i), sums[k]);
        }
      }
      hn::Store(sum_lanes(d, sums), d, scores + key);
    }
  }
}

void softmax(float* scores, std::size_t begin, std::size_t end, float scale, float softcap, float* max,
             float* sum) noexcept {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const float lowest = -__builtin_inff();
  const std::size_t first = begin / k_key_block * k_key_block;
  const std::size_t last = (end + k_key_block - 1) / k_key_block * k_key_block;
  const auto scales = hn::Set(d, softcap > 0 ? scale / softcap : scale);
  for (std::size_t i = first; i < last; i += lanes) {
    auto s = hn::Mul(hn::Load(d, scores + i), scales);
    if (softcap > 0) s = hn::Mul(hyperbolic_tangent(d, s), hn::Set(d, softcap));
    hn::Store(s, d, scores + i);
  }
  for (std::size_t i = first; i < begin; ++i) scores[i] = lowest;
  for (std::size_t i = end; i < last; ++i) scores[i] = lowest;
  auto highest = hn::Set(d, lowest);
  for (std::size_t i = first; i < last; i += lanes) highest = larger(highest, hn::Load(d, scores + i));
  // Lane by lane, so that a NaN is not lost in the target's own maximum.
  alignas(64) float by_lane[16];
  hn::Store(highest, d, by_lane);
  float top = by_lane[0];
  for (std::size_t lane = 1; lane < lanes; ++lane) {
    top = top > by_lane[lane] || top != top ? top : by_lane[lane];
  }
  *max = top;
  *sum = 0;
  if (top == lowest) {
    for (std::size_t i = first; i < last; ++i) scores[i] = 0;
    return;
  }
  auto total = hn::Zero(d);
  const auto offset = hn::Set(d, top);
  for (std::size_t i = first; i < last; i += lanes) {
    const auto p = exponential(d, hn::Sub(hn::Load(d, scores + i), offset));
    hn::Store(p, d, scores + i);
    total = hn::Add(total, p);
  }
  *sum = hn::GetLane(hn::SumOfLanes(d, total));
}

/// `k_vectors` vectors of the accumulator stay in registers for all keys.
template <std::size_t k_vectors>
HWY_INLINE void accumulate_columns(const float* p, std::size_t n_keys, const float* values,
                                   std::size_t stride, float* acc) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  Vector sums[k_vectors];
#pragma GCC unroll 16
  for (std::size_t v = 0; v < k_vectors; ++v) sums[v] = hn::Load(d, acc + v * lanes);
  for (std::size_t key = 0; key < n_keys; ++key, values += stride) {
    const auto weight = hn::Set(d, p[key]);
#pragma GCC unroll 16
    for (std::size_t v = 0; v < k_vectors; ++v) {
      sums[v] = hn::MulAdd(weight, hn::Load(d, values + v * lanes), sums[v]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t v = 0; v < k_vectors; ++v) hn::Store(sums[v], d, acc + v * lanes);
}

void accumulate(const float* p, std::size_t n_keys, const float* values, std::size_t n, float* acc) noexcept {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + 8 * lanes <= n; i += 8 * lanes) accumulate_columns<8>(p, n_keys, values + i, n, acc + i);
  for (; i + 2 * lanes <= n; i += 2 * lanes) accumulate_columns<2>(p, n_keys, values + i, n, acc + i);
  for (; i < n; i += lanes) accumulate_columns<1>(p, n_keys, values + i, n, acc + i);
}

template <class D>
HWY_INLINE void merge_step(D d, float old_factor, float new_factor, const float* acc, float* total) {
  const auto kept = hn::Mul(hn::LoadU(d, total), hn::Set(d, old_factor));
  hn::StoreU(hn::MulAdd(hn::LoadU(d, acc), hn::Set(d, new_factor), kept), d, total);
}

void merge(float max, float sum, const float* acc, std::size_t n, float* total_max, float* total_sum,
           float* total) noexcept {
  const float lowest = -__builtin_inff();
  if (max == lowest) return;  // The segment holds nothing this query may see.
  if (*total_max == lowest) {
    *total_max = max;
    *total_sum = sum;
    for (std::size_t i = 0; i < n; ++i) total[i] = acc[i];
    return;
  }
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const float top = *total_max > max ? *total_max : max;
  const hn::CappedTag<float, 1> one;
  const float old_factor = hn::GetLane(exponential(one, hn::Set(one, *total_max - top)));
  const float new_factor = hn::GetLane(exponential(one, hn::Set(one, max - top)));
  *total_max = top;
  *total_sum = *total_sum * old_factor + sum * new_factor;
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) merge_step(d, old_factor, new_factor, acc + i, total + i);
  for (; i < n; ++i) merge_step(one, old_factor, new_factor, acc + i, total + i);
}

}  // namespace

const AttentionMath& attention_table() noexcept {
  static constexpr AttentionMath table{widen, widen_q8, to_q8, score, softmax, accumulate, merge};
  return table;
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
