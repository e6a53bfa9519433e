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
/// At most half a block of columns.
using Columns = hn::CappedTag<float, k_delta_columns / 2>;

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

/// Two vectors of columns side by side, which share what is the same for all columns.
template <class V>
struct Pair {
  V left, right;
};

/// Of each column four sums, by the place in the row alone, so that additions need not wait for one another.
template <class D>
struct Sums {
  using V = hn::Vec<D>;
  explicit HWY_INLINE Sums(D d) : sum0{hn::Zero(d), hn::Zero(d)}, sum1(sum0), sum2(sum0), sum3(sum0) {}
  static HWY_INLINE void add(Pair<V> s, V factor, Pair<V>& sum) {
    sum = {hn::MulAdd(s.left, factor, sum.left), hn::MulAdd(s.right, factor, sum.right)};
  }
  HWY_INLINE Pair<V> total() const {
    return {hn::Add(hn::Add(sum0.left, sum1.left), hn::Add(sum2.left, sum3.left)),
            hn::Add(hn::Add(sum0.right, sum1.right), hn::Add(sum2.right, sum3.right))};
  }
  Pair<V> sum0, sum1, sum2, sum3;
};

template <class D>
HWY_INLINE Pair<hn::Vec<D>> load(D d, const float* at) {
  return {hn::LoadU(d, at), hn::LoadU(d, at + hn::Lanes(d))};
}

/// k s, of the state before its decay.
template <class D>
HWY_INLINE Pair<hn::Vec<D>> recall(D d, const float* state, const float* k, std::size_t head_dim) {
  Sums<D> sums(d);
  for (std::size_t i = 0; i < head_dim; i += 4) {
    const float* s = state + i * k_delta_columns;
    sums.add(load(d, s), hn::Set(d, k[i]), sums.sum0);
    sums.add(load(d, s + k_delta_columns), hn::Set(d, k[i + 1]), sums.sum1);
    sums.add(load(d, s + 2 * k_delta_columns), hn::Set(d, k[i + 2]), sums.sum2);
    sums.add(load(d, s + 3 * k_delta_columns), hn::Set(d, k[i + 3]), sums.sum3);
  }
  return sums.total();
}

/// One row of the state: to = decay * from + k * change. Returns it.
template <class D, class V>
HWY_INLINE Pair<V> update(D d, const float* from, V decay, V k, const Pair<V>& change, float* to) {
  const Pair<V> old = load(d, from);
  const Pair<V> s = {hn::MulAdd(k, change.left, hn::Mul(old.left, decay)),
                     hn::MulAdd(k, change.right, hn::Mul(old.right, decay))};
  hn::StoreU(s.left, d, to);
  hn::StoreU(s.right, d, to + hn::Lanes(d));
  return s;
}

/// All rows of the state; returns q s of the new one.
template <class D, class V>
HWY_INLINE Pair<V> update_all(D d, const float* from, V decay, const Pair<V>& change, const float* q,
                              const float* k, std::size_t head_dim, float* to) {
  Sums<D> sums(d);
  const auto row = [&](std::size_t i, Pair<V>& sum) {
    const std::size_t at = i * k_delta_columns;
    sums.add(update(d, from + at, decay, hn::Set(d, k[i]), change, to + at), hn::Set(d, q[i]), sum);
  };
  for (std::size_t i = 0; i < head_dim; i += 4) {
    row(i, sums.sum0);
    row(i + 1, sums.sum1);
    row(i + 2, sums.sum2);
    row(i + 3, sums.sum3);
  }
  return sums.total();
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
    for (std::size_t c = 0; c < k_delta_columns; c += 2 * lanes) {
      const auto recalled = recall(d, from + c, k, head.head_dim);
      const auto value = load(d, v + c);
      const Pair<hn::Vec<Columns>> change = {
          hn::Mul(beta, hn::NegMulAdd(decay, recalled.left, value.left)),
          hn::Mul(beta, hn::NegMulAdd(decay, recalled.right, value.right))};
      const auto y = update_all(d, from + c, decay, change, q, k, head.head_dim, to + c);
      if (head.y == nullptr) continue;
      hn::StoreU(y.left, d, head.y + t * head.y_stride + c);
      hn::StoreU(y.right, d, head.y + t * head.y_stride + c + lanes);
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
