#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/cpu_features.hpp"

namespace sluice::kernels {

/// Loops over floats, built for one instruction set. Sums keep one fixed order that depends only on `n` and
/// the set, so a row gives the same bits wherever and beside whatever it is computed. Pointers need no
/// alignment unless stated; no allocation, no threads. exp is a polynomial: relative error below 3e-7 on
/// [-87.3, 88.0], 0 below, held at exp(88.0) above, NaN stays NaN.
struct VectorMath {
  float (*sum_squares)(const float* x, std::size_t n) noexcept;
  /// y = x * factor * gain (gain may be null; y may be x).
  void (*scale)(const float* x, float factor, const float* gain, float* y, std::size_t n) noexcept;
  /// By Activation: out = that of gate and up (out may be gate or up). With silu: gate / (1 + exp(-gate)) *
  /// up.
  void (*activate[3])(const float* gate, const float* up, float* out, std::size_t n) noexcept;
  /// x /= 1 + exp(-gate).
  void (*gate)(const float* gate, float* x, std::size_t n) noexcept;
  /// y += x.
  void (*add)(const float* x, float* y, std::size_t n) noexcept;
  /// y += weights[0] * x[0] + weights[1] * x[1] + ..., x[i] = x + i * stride, summed in that order.
  void (*add_weighted)(const float* x, std::size_t stride, const float* weights, std::size_t count, float* y,
                       std::size_t n) noexcept;
  /// x = cap * tanh(x / cap).
  void (*softcap)(float* x, float cap, std::size_t n) noexcept;
  /// x = exp(x - offset).
  void (*exp_minus)(float* x, float offset, std::size_t n) noexcept;
  /// Rotates n_pairs pairs in place: (x[i], x[i + n_pairs]) when `halves`, else (x[2i], x[2i + 1]).
  void (*rotate)(float* x, const float* cosines, const float* sines, std::size_t n_pairs,
                 bool halves) noexcept;
  /// Round to nearest even, as f32_to_f16.
  void (*to_f16)(const float* x, std::uint16_t* y, std::size_t n) noexcept;
};

/// The table for a set, or the nearest set below that was compiled in (isa_traits.hpp).
const VectorMath& vector_math(platform::Isa isa) noexcept;

/// Keys scored at once; divides KvShape::page_tokens.
constexpr std::size_t k_key_block = 16;
/// Positions whose partial result is kept apart until it is merged. A multiple of KvShape::page_tokens.
constexpr std::size_t k_segment = 256;

/// The inner loops of attention, same promises as VectorMath.
struct AttentionMath {
  /// dst[r][0 .. dst_stride) = the n f16 of row r, then zeros. Rows of src follow each other; dst rows are
  /// 64-byte aligned and dst_stride is a multiple of 16.
  void (*widen)(const std::uint16_t* src, std::size_t n_rows, std::size_t n, float* dst,
                std::size_t dst_stride) noexcept;
  /// The same for rows of Q8_0 blocks. Here n is a multiple of 32 and dst_stride is n.
  void (*widen_q8)(const std::byte* src, std::size_t n_rows, std::size_t n, float* dst) noexcept;
  /// The n floats of x as Q8_0 blocks; n is a multiple of 32. A block's scale is its largest absolute value /
  /// 127, rounded to f16; NaN makes the whole block NaN.
  void (*to_q8)(const float* x, std::byte* y, std::size_t n) noexcept;
  /// scores[q * k_segment + k] = dot(queries[q], keys[k]) for k_key_block keys; both padded with zeros to
  /// `stride` floats, 64-byte aligned.
  void (*score)(const float* keys, const float* queries, std::size_t n_queries, std::size_t stride,
                float* scores) noexcept;
  /// Turns the scores of positions [begin, end) of one segment into unnormalised probabilities exp(s - max),
  /// with s = softcap(score * scale); other positions of the k_key_blocks touched become 0. `scores` is
  /// 64-byte aligned.
  void (*softmax)(float* scores, std::size_t begin, std::size_t end, float scale, float softcap, float* max,
                  float* sum) noexcept;
  /// acc += p[0] * values[0] + p[1] * values[1] + ..., one fused step after the other. `n` is a multiple of
  /// 16, rows and acc are 64-byte aligned.
  void (*accumulate)(const float* p, std::size_t n_keys, const float* values, std::size_t n,
                     float* acc) noexcept;
  /// Merges a segment's (max, sum, acc) into the running one; `total` holds n floats.
  void (*merge)(float max, float sum, const float* acc, std::size_t n, float* total_max, float* total_sum,
                float* total) noexcept;
};

const AttentionMath& attention_math(platform::Isa isa) noexcept;

}  // namespace sluice::kernels
