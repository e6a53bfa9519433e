#pragma once

// The Highway targets that stand for our instruction sets; include it before any Highway header. A file that
// is compiled once per target ends in one table per target, and the caller's Isa picks the table: Highway's
// own dispatch is not used, because a result must be reproducible for a named set.

#undef HWY_DISABLED_TARGETS
#if defined(SLUICE_NO_SIMD)
#define HWY_DISABLED_TARGETS (~(HWY_EMU128 | HWY_SCALAR))
#else
#define HWY_DISABLED_TARGETS (~(HWY_AVX3 | HWY_AVX2 | HWY_NEON | HWY_EMU128 | HWY_SCALAR))
#endif
// Every AArch64 machine has NEON, so Highway would leave out the fallback that Isa::scalar stands for.
#if defined(__aarch64__) && !defined(HWY_COMPILE_ALL_ATTAINABLE)
#define HWY_COMPILE_ALL_ATTAINABLE
#endif

#include <hwy/detect_targets.h>

#include "platform/cpu_features.hpp"

// The function of each set's target, or null where this compiler or build lacks the target. Usable behind
// `#if HWY_ONCE`.
#if HWY_TARGETS & HWY_AVX3
#define SLUICE_AVX512_TARGET(function) N_AVX3::function
#else
#define SLUICE_AVX512_TARGET(function) nullptr
#endif
#if HWY_TARGETS & HWY_AVX2
#define SLUICE_AVX2_TARGET(function) N_AVX2::function
#else
#define SLUICE_AVX2_TARGET(function) nullptr
#endif
#if HWY_TARGETS & HWY_NEON
#define SLUICE_NEON_TARGET(function) N_NEON::function
#else
#define SLUICE_NEON_TARGET(function) nullptr
#endif
#if HWY_TARGETS & HWY_EMU128
#define SLUICE_SCALAR_TARGET(function) N_EMU128::function
#elif HWY_TARGETS & HWY_SCALAR
#define SLUICE_SCALAR_TARGET(function) N_SCALAR::function
#else
#define SLUICE_SCALAR_TARGET(function) HWY_STATIC_DISPATCH(function)
#endif
#define SLUICE_TARGETS(function)                                                                \
  {                                                                                             \
    SLUICE_SCALAR_TARGET(function), SLUICE_NEON_TARGET(function), SLUICE_AVX2_TARGET(function), \
        SLUICE_AVX512_TARGET(function)                                                          \
  }

namespace sluice::kernels {

/// For each instruction set the function that returns its table, as SLUICE_TARGETS names them.
template <typename Table>
struct TargetTables {
  using Get = const Table& (*)() noexcept;
  Get scalar, neon, avx2, avx512;

  /// The table of a set, or that of the next lower set on the same architecture which this build has. A set
  /// that is missing here would silently get the slow one, so it does not compile.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wswitch"
  const Table& of(platform::Isa isa) const noexcept {
    switch (isa) {
      case platform::Isa::avx512:
        if (avx512 != nullptr) return avx512();
        [[fallthrough]];
      case platform::Isa::avx2:
        if (avx2 != nullptr) return avx2();
        break;
      case platform::Isa::neon:
        if (neon != nullptr) return neon();
        break;
      case platform::Isa::scalar:
        break;
    }
    return scalar();
  }
#pragma GCC diagnostic pop
};

}  // namespace sluice::kernels
