#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::platform {

/// Instruction sets the kernels are built for, in rising order of preference on their architecture; isas.def
/// lists them.
enum class Isa {
#define SLUICE_ISA(name, below, family, target) name,
#include "platform/isas.def"
};

std::span<const Isa> all_isas() noexcept;
const char* isa_name(Isa isa) noexcept;
std::optional<Isa> parse_isa(std::string_view name) noexcept;

/// Every set this machine and operating system can run and this build has kernels for, scalar first (a build
/// with SLUICE_SIMD=OFF has no others). avx2 means AVX2 + FMA + F16C; avxvnni AVX-VNNI beside that; avx512
/// means F, BW, DQ, VL and VNNI (and the OS saves the registers); neon means AArch64's with the dot-product
/// extension.
std::vector<Isa> supported_isas();

/// The best supported set, or the one named by the environment variable SLUICE_ISA (Error(invalid_argument)
/// when that is unknown or not supported here).
Isa choose_isa();

/// Cores this process may use: affinity mask and cgroup CPU quota (v1, v2, ancestors) taken into account, at
/// least 1.
int usable_cpus();
/// Threads for a quota of so many cores' time (0: none) on `n_cpus` cores: the nearest number, at least 1.
/// One thread more than the quota pays for makes all of them wait for the rest of each period, which costs
/// most where memory bounds the work; one less leaves paid time unused (docs/performance.md has both). Pure.
int threads_for_quota(double quota, int n_cpus) noexcept;

/// "AMD EPYC ..." or "unknown".
std::string cpu_model_name();

}  // namespace sluice::platform
