#include "platform/cpu_features.hpp"

#include <sched.h>
#include <unistd.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.hpp"
#include "platform/cgroup.hpp"
#include "platform/text_files.hpp"

namespace sluice::platform {
namespace {

constexpr Isa k_all_isas[] = {
#define SLUICE_ISA(name, below, family, target) Isa::name,
#include "platform/isas.def"
};

#if defined(SLUICE_NO_SIMD)
constexpr bool k_has_simd = false;
#else
constexpr bool k_has_simd = true;
#endif

// --- Whether the machine runs a set: one function for each of isas.def

bool has_scalar() noexcept {
  return true;
}

#if defined(__aarch64__)
bool has_neon() noexcept {
  constexpr unsigned long k_hwcap_asimddp = 1ul << 20;  // HWCAP_ASIMDDP of <asm/hwcap.h>.
  return (getauxval(AT_HWCAP) & k_hwcap_asimddp) != 0;
}
#else
bool has_neon() noexcept {
  return false;
}
#endif

#if defined(__x86_64__)
// Clang 14 has no __builtin_cpu_supports("f16c").
bool has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
// The compiler's cpuid tests include XGETBV, so a feature whose registers the system does not save counts as
// missing. Vector code built for AVX2 also uses the bit instructions every such processor has.
bool has_avx2() noexcept {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma") &&
         has_f16c();
}
// Clang 14 has no name for it.
bool has_avxvnni() noexcept {
  constexpr unsigned k_avx_vnni = 1u << 4;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & k_avx_vnni) != 0;
}
bool has_avx512() noexcept {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#else
bool has_avx2() noexcept {
  return false;
}
bool has_avxvnni() noexcept {
  return false;
}
bool has_avx512() noexcept {
  return false;
}
#endif

bool is_supported(Isa isa) noexcept {
  if (!k_has_simd && isa != Isa::scalar) return false;
  switch (isa) {
#define SLUICE_ISA(name, below, family, target) \
  case Isa::name:                               \
    return has_##name();
#include "platform/isas.def"
  }
  return false;
}

std::string isa_list(const std::vector<Isa>& isas) {
  std::string text;
  for (Isa isa : isas) text += (text.empty() ? "" : ", ") + std::string(isa_name(isa));
  return text;
}

int affinity_cpus() {
  // The kernel refuses a mask smaller than its own; machines with more than 1024 CPUs need a larger one.
  for (int n_cpus = 1024; n_cpus <= 1 << 16; n_cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(n_cpus));
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(n_cpus));
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (ok && count > 0) return count;
  }
  return static_cast<int>(std::max(1l, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

std::span<const Isa> all_isas() noexcept {
  return k_all_isas;
}

const char* isa_name(Isa isa) noexcept {
  switch (isa) {
#define SLUICE_ISA(name, below, family, target) \
  case Isa::name:                               \
    return #name;
#include "platform/isas.def"
  }
  return "unknown";
}

std::optional<Isa> parse_isa(std::string_view name) noexcept {
  for (Isa isa : k_all_isas) {
    if (name == isa_name(isa)) return isa;
  }
  return std::nullopt;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : k_all_isas) {
    if (is_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa choose_isa() {
  const std::vector<Isa> supported = supported_isas();
  const char* wanted = std::getenv("SLUICE_ISA");
  if (wanted == nullptr || *wanted == '\0') return supported.back();
  const auto isa = parse_isa(wanted);
  if (!isa || std::find(supported.begin(), supported.end(), *isa) == supported.end()) {
    base::fail(ErrorCode::invalid_argument,
               "SLUICE_ISA is \"{}\", which {}; this machine runs: {} (unset it to take the best)", wanted,
               !isa          ? "names no instruction set"
               : !k_has_simd ? "this build has no kernels for"
                             : "this machine or operating system does not support",
               isa_list(supported));
  }
  return *isa;
}

int usable_cpus() {
  const int n_cpus = affinity_cpus();
  const double quota = cpu_quota("");
  return threads_for_quota(quota, n_cpus);
}

int threads_for_quota(double quota, int n_cpus) noexcept {
  if (quota <= 0 || quota >= n_cpus) return n_cpus;
  return std::max(1, static_cast<int>(std::lround(quota)));
}

std::string cpu_model_name() {
  const auto text = read_text_file("/proc/cpuinfo");
  std::string name;
  for_each_line(text ? std::string_view(*text) : std::string_view(), [&](std::string_view line) {
    const std::size_t colon = line.find(':');
    if (!name.empty() || colon == std::string_view::npos) return;
    std::string_view key = line.substr(0, colon);
    while (!key.empty() && (key.back() == ' ' || key.back() == '\t')) key.remove_suffix(1);
    if (key != "model name") return;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    name = value;
  });
  return name.empty() ? "unknown" : name;
}

}  // namespace sluice::platform
