#pragma once

// RowDot of sets on which every format is multiplied while it is unpacked. Include after fused_dot.hpp.

namespace sluice::kernels::simd {
namespace {

template <class Format>
struct RowDot : FusedRowDot<Format> {};

}  // namespace
}  // namespace sluice::kernels::simd
