#pragma once

namespace sluice {
/// "0.1.0".
const char* version() noexcept;
/// Compiler, build type and optional parts, for bug reports: "g++ 12.2, Release, io_uring, avx512".
const char* build_facts();
}  // namespace sluice
