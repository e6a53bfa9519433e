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

// The function of a target, or null where this compiler or build lacks it; the names are those of
// platform/isas.def.
#if HWY_TARGETS & HWY_AVX3
#define SLUICE_AVX3_TARGET(function) N_AVX3::function
#else
#define SLUICE_AVX3_TARGET(function) nullptr
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
// What stands for Isa::scalar.
#if HWY_TARGETS & HWY_EMU128
#define SLUICE_EMU128_TARGET(function) N_EMU128::function
#elif HWY_TARGETS & HWY_SCALAR
#define SLUICE_EMU128_TARGET(function) N_SCALAR::function
#else
#error "Highway has no target without vector instructions here"
#endif
