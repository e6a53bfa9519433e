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
