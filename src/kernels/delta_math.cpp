#include "kernels/delta_math.hpp"

#include "kernels/delta.hpp"
#include "kernels/vector_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_math.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/vector_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace {

using Whole = hn::ScalableTag<float>;
using Single = hn::CappedTag<float, 1>;
/// At most a block of columns.
using Columns = hn::CappedTag<float, k_delta_columns>;

template <class D, class V>
HWY_INLINE V silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exponential(d, hn::Neg(x))));
}

void convolve_one(const float* const* inputs, const float* weights, std::size_t n_taps, std::size_t c,
                  float* y) noexcept {
  const Single d;
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < n_taps; ++i) {
    if (inputs[i] != nullptr)
      sum = hn::MulAdd(hn::Set(d, weights[c * n_taps + i]), hn::Set(d, inputs[i][c]), sum);
  }
  hn::StoreU(silu(d, sum), d, y + c);
}

template <class D, class V>
HWY_INLINE V add_tap(D d, V weights, const float* input, std::size_t c, V sum) {
  return input == nullptr ? sum : hn::MulAdd(weights, hn::LoadU(d, input + c), sum);
}

void convolve(const float* const* inputs, const float* weights, std::size_t n_taps, std::size_t n,
              float* y) noexcept {
  std::size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  // Four taps, which all models have.
  for (; n_taps == 4 && c + lanes <= n; c += lanes) {
    hn::Vec<Whole> w0, w1, w2, w3;
    hn::LoadInterleaved4(d, weights + 4 * c, w0, w1, w2, w3);
    auto sum = add_tap(d, w0, inputs[0], c, hn::Zero(d));
    sum = add_tap(d, w1, inputs[1], c, sum);
    sum = add_tap(d, w2, inputs[2], c, sum);
    sum = add_tap(d, w3, inputs[3], c, sum);
    hn::StoreU(silu(d, sum), d, y + c);
  }
#endif
  for (; c < n; ++c) convolve_one(inputs, weights, n_taps, c, y);
}

/// Four sums that depend on nothing but the place in the row, so that additions need not wait for one
/// another.
template <class V>
HWY_INLINE V total(V sum0, V sum1, V sum2, V sum3) {
  return hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
}

/// k s, of the state before its decay.
template <class D>
HWY_INLINE hn::Vec<D> recall(D d, const float* state, const float* k, std::size_t head_dim) {
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  for (std::size_t i = 0; i < head_dim; i += 4) {
    const float* s = state + i * k_delta_columns;
    sum0 = hn::MulAdd(hn::LoadU(d, s), hn::Set(d, k[i]), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, s + k_delta_columns), hn::Set(d, k[i + 1]), sum1);
    sum2 = hn::MulAdd(hn::LoadU(d, s + 2 * k_delta_columns), hn::Set(d, k[i + 2]), sum2);
    sum3 = hn::MulAdd(hn::LoadU(d, s + 3 * k_delta_columns), hn::Set(d, k[i + 3]), sum3);
  }
  return total(sum0, sum1, sum2, sum3);
}

/// One row of the state: to = decay * from + k * change. Returns it.
template <class D, class V>
HWY_INLINE V update(D d, const float* from, V decay, float k, V change, float* to) {
  const auto s = hn::MulAdd(hn::Set(d, k), change, hn::Mul(hn::LoadU(d, from), decay));
  hn::StoreU(s, d, to);
  return s;
}

/// All rows of the state; returns q s of the new one.
template <class D, class V>
HWY_INLINE V update_all(D d, const float* from, V decay, V change, const float* q, const float* k,
                        std::size_t head_dim, float* to) {
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  for (std::size_t i = 0; i < head_dim; i += 4) {
    const std::size_t at = i * k_delta_columns;
    sum0 = hn::MulAdd(update(d, from + at, decay, k[i], change, to + at), hn::Set(d, q[i]), sum0);
    const std::size_t at1 = at + k_delta_columns, at2 = at1 + k_delta_columns, at3 = at2 + k_delta_columns;
    sum1 = hn::MulAdd(update(d, from + at1, decay, k[i + 1], change, to + at1), hn::Set(d, q[i + 1]), sum1);
    sum2 = hn::MulAdd(update(d, from + at2, decay, k[i + 2], change, to + at2), hn::Set(d, q[i + 2]), sum2);
    sum3 = hn::MulAdd(update(d, from + at3, decay, k[i + 3], change, to + at3), hn::Set(d, q[i + 3]), sum3);
  }
  return total(sum0, sum1, sum2, sum3);
}

// Columns do not depend on one another, so how many are taken at a time changes no bit.
void advance(const float* from, float* to, const DeltaHead& head) noexcept {
  const Columns d;
  const std::size_t lanes = hn::Lanes(d);
  if (from == nullptr) {
    for (std::size_t i = 0; i < head.head_dim * k_delta_columns; i += lanes)
      hn::StoreU(hn::Zero(d), d, to + i);
    from = to;
  }
  for (std::size_t t = 0; t < head.n_rows; ++t, from = to) {
    const float *q = head.q + t * head.stride, *k = head.k + t * head.stride, *v = head.v + t * head.stride;
    const auto decay = hn::Set(d, head.decay[t * head.gate_stride]);
    const auto beta = hn::Set(d, head.beta[t * head.gate_stride]);
    for (std::size_t c = 0; c < k_delta_columns; c += lanes) {
      const auto recalled = recall(d, from + c, k, head.head_dim);
      const auto change = hn::Mul(beta, hn::NegMulAdd(decay, recalled, hn::LoadU(d, v + c)));
      const auto y = update_all(d, from + c, decay, change, q, k, head.head_dim, to + c);
      if (head.y != nullptr) hn::StoreU(y, d, head.y + t * head.y_stride + c);
    }
  }
}

}  // namespace

const DeltaMath& delta_table() noexcept {
  static constexpr DeltaMath table{convolve, advance};
  return table;
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
