// Included once per Highway target; see vector_targets.hpp.
#if defined(SLUICE_KERNELS_VECTOR_MATH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_VECTOR_MATH_INL_HPP
#undef SLUICE_KERNELS_VECTOR_MATH_INL_HPP
#else
#define SLUICE_KERNELS_VECTOR_MATH_INL_HPP
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace {  // NOLINT: one copy per file and target, always inlined.

namespace hn = hwy::HWY_NAMESPACE;

/// The larger of two, NaN when either is. Highway leaves that case to the target.
template <class V>
HWY_INLINE V larger(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
}

/// exp with the promises of VectorMath: Cody and Waite's reduction to [-ln2/2, ln2/2], then the polynomial of
/// Cephes' expf.
template <class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto highest = hn::Set(d, 88.0f);
  const auto lowest = hn::Set(d, -87.33654f);  // ln(2^-126): below it the result would be subnormal.
  const auto is_tiny = hn::Lt(x, lowest);
  const auto held = hn::IfThenElse(hn::Gt(x, highest), highest, hn::IfThenElse(is_tiny, lowest, x));
  const auto n = hn::Round(hn::Mul(held, hn::Set(d, 1.44269504088896341f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), held);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(is_tiny, hn::Mul(p, power));
}

/// 1 - 2 / (exp(2x) + 1).
template <class D>
HWY_INLINE hn::Vec<D> hyperbolic_tangent(D d, hn::Vec<D> x) {
  const auto above = hn::Add(exponential(d, hn::Add(x, x)), hn::Set(d, 1.0f));
  return hn::Sub(hn::Set(d, 1.0f), hn::Div(hn::Set(d, 2.0f), above));
}

}  // namespace
}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
