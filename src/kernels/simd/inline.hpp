#pragma once

#define SLUICE_INLINE __attribute__((always_inline)) inline
/// Large loops stay functions of their own: together they exhaust the compiler's register allocation.
#define SLUICE_NOINLINE __attribute__((noinline))
