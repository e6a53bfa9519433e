#include "kernels/vector_math.hpp"

#include "kernels/quant.hpp"
#include "kernels/vector_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_math.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/vector_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace {

// Every loop takes whole vectors first and the rest one by one with the same operations. Which elements
// belong to the rest depends on n alone, so all rows of one shape are treated alike.
using Whole = hn::ScalableTag<float>;
using Single = hn::CappedTag<float, 1>;

float sum_squares(const float* x, std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
    const auto x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
    sum2 = hn::MulAdd(x2, x2, sum2);
    sum3 = hn::MulAdd(x3, x3, sum3);
  }
  for (; i + lanes <= n; i += lanes) {
    const auto x0 = hn::LoadU(d, x + i);
    sum0 = hn::MulAdd(x0, x0, sum0);
  }
  float rest = 0;
  for (; i < n; ++i) rest += x[i] * x[i];
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)))) + rest;
}

void scale(const float* x, float factor, const float* gain, float* y, std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factors = hn::Set(d, factor);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto value = hn::Mul(hn::LoadU(d, x + i), factors);
    if (gain != nullptr) value = hn::Mul(value, hn::LoadU(d, gain + i));
    hn::StoreU(value, d, y + i);
  }
  for (; i < n; ++i) {
    const float value = x[i] * factor;
    y[i] = gain != nullptr ? value * gain[i] : value;
  }
}

/// g / (1 + exp(-x)).
template <class D, class V>
HWY_INLINE V times_logistic(D d, V g, V x) {
  return hn::Div(g, hn::Add(hn::Set(d, 1.0f), exponential(d, hn::Neg(x))));
}

struct Silu {
  template <class D, class V>
  static HWY_INLINE V of(D d, V gate, V up) {
    return hn::Mul(times_logistic(d, gate, gate), up);
  }
};

/// 0.5 * (1 + tanh(u)) = 1 / (1 + exp(-2u)), with u = sqrt(2 / pi) * (gate + 0.044715 * gate^3).
struct GeluTanh {
  template <class D, class V>
  static HWY_INLINE V of(D d, V gate, V up) {
    const auto square = hn::Mul(gate, gate);
    const auto factor =
        hn::MulAdd(square, hn::Set(d, 2 * 0.79788456f * 0.044715f), hn::Set(d, 2 * 0.79788456f));
    return hn::Mul(times_logistic(d, gate, hn::Mul(gate, factor)), up);
  }
};

struct SwigluOai {
  template <class D, class V>
  static HWY_INLINE V of(D d, V gate, V up) {
    const auto highest = hn::Set(d, 7.0f), lowest = hn::Set(d, -7.0f);
    // Comparisons that are false for NaN keep it.
    const auto g = hn::IfThenElse(hn::Gt(gate, highest), highest, gate);
    const auto below = hn::IfThenElse(hn::Gt(up, highest), highest, up);
    const auto u = hn::IfThenElse(hn::Lt(below, lowest), lowest, below);
    return hn::Mul(times_logistic(d, g, hn::Mul(g, hn::Set(d, 1.702f))), hn::Add(u, hn::Set(d, 1.0f)));
  }
};

template <class Rule, class D>
HWY_INLINE void activate_step(D d, const float* gate, const float* up, float* out) {
  hn::StoreU(Rule::of(d, hn::LoadU(d, gate), hn::LoadU(d, up)), d, out);
}

template <class Rule>
void activate(const float* gate, const float* up, float* out, std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) activate_step<Rule>(d, gate + i, up + i, out + i);
  for (; i < n; ++i) activate_step<Rule>(Single(), gate + i, up + i, out + i);
}

template <class D>
HWY_INLINE void softcap_step(D d, float* x, float cap) {
  const auto s = hn::Mul(hn::LoadU(d, x), hn::Set(d, 1.0f / cap));
  hn::StoreU(hn::Mul(hyperbolic_tangent(d, s), hn::Set(d, cap)), d, x);
}

void softcap(float* x, float cap, std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) softcap_step(d, x + i, cap);
  for (; i < n; ++i) softcap_step(Single(), x + i, cap);
}

template <class D>
HWY_INLINE void gate_step(D d, const float* gate, float* x) {
  const auto below = hn::Add(hn::Set(d, 1.0f), exponential(d, hn::Neg(hn::LoadU(d, gate))));
  hn::StoreU(hn::Div(hn::LoadU(d, x), below), d, x);
}

void gate(const float* gates, float* x, std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) gate_step(d, gates + i, x + i);
  for (; i < n; ++i) gate_step(Single(), gates + i, x + i);
}

void add(const float* x, float* y, std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  for (; i < n; ++i) y[i] += x[i];
}

template <class D>
HWY_INLINE void add_weighted_step(D d, const float* x, std::size_t stride, const float* weights,
                                  std::size_t count, float* y) {
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < count; ++i) {
    sum = hn::MulAdd(hn::Set(d, weights[i]), hn::LoadU(d, x + i * stride), sum);
  }
  hn::StoreU(hn::Add(hn::LoadU(d, y), sum), d, y);
}

void add_weighted(const float* x, std::size_t stride, const float* weights, std::size_t count, float* y,
                  std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) add_weighted_step(d, x + i, stride, weights, count, y + i);
  for (; i < n; ++i) add_weighted_step(Single(), x + i, stride, weights, count, y + i);
}

template <class D>
HWY_INLINE void exp_minus_step(D d, float* x, float offset) {
  hn::StoreU(exponential(d, hn::Sub(hn::LoadU(d, x), hn::Set(d, offset))), d, x);
}

void exp_minus(float* x, float offset, std::size_t n) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) exp_minus_step(d, x + i, offset);
  for (; i < n; ++i) exp_minus_step(Single(), x + i, offset);
}

template <class D>
HWY_INLINE void rotate_step(D d, float* first, float* second, const float* cosines, const float* sines) {
  const auto a = hn::LoadU(d, first), b = hn::LoadU(d, second);
  const auto c = hn::LoadU(d, cosines), s = hn::LoadU(d, sines);
  hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, first);
  hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, second);
}

void rotate(float* x, const float* cosines, const float* sines, std::size_t n_pairs, bool halves) noexcept {
  const Whole d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (halves) {
    for (; i + lanes <= n_pairs; i += lanes) rotate_step(d, x + i, x + n_pairs + i, cosines + i, sines + i);
    for (; i < n_pairs; ++i) rotate_step(Single(), x + i, x + n_pairs + i, cosines + i, sines + i);
    return;
  }
#if HWY_TARGET != HWY_SCALAR
  for (; i + lanes <= n_pairs; i += lanes) {
    hn::Vec<Whole> a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const auto c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(b, c, hn::Mul(a, s)), d, x + 2 * i);
  }
#endif
  for (; i < n_pairs; ++i) rotate_step(Single(), x + 2 * i, x + 2 * i + 1, cosines + i, sines + i);
}

void to_f16(const float* x, std::uint16_t* y, std::size_t n) noexcept {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  const Whole d;
  const hn::Rebind<hwy::float16_t, Whole> half;
  const hn::Rebind<std::uint16_t, Whole> bits;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(half, hn::LoadU(d, x + i))), bits, y + i);
  }
#endif
  for (; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

}  // namespace

const VectorMath& vector_table() noexcept {
  static constexpr VectorMath table{
      sum_squares, scale,     {activate<Silu>, activate<GeluTanh>, activate<SwigluOai>},
      gate,        add,       add_weighted,
      softcap,     exp_minus, rotate,
      to_f16};
  return table;
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
