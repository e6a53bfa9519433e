#pragma once

#include <cstdint>
#include <string>

namespace sluice {

/// What a measurement ran on.
struct MachineInfo {
  std::string cpu_model;           ///< "AMD EPYC ...", or "unknown".
  std::string kernel;              ///< "Linux 6.1.0", or "unknown".
  std::string isa;                 ///< Instruction set the kernels use here.
  int n_usable_cpus = 0;           ///< Cores this process may use.
  std::uint64_t memory_bytes = 0;  ///< Of the machine.
};

/// Throws Error(invalid_argument) when the environment variable SLUICE_ISA names a set this machine lacks.
MachineInfo machine_info();

/// What the machine delivers, measured.
struct MachineRates {
  int n_threads = 0;
  std::uint64_t buffer_bytes = 0;    ///< Memory that was read, over and over.
  std::uint64_t cache_bytes = 0;     ///< The last-level cache, 0 where the system does not say.
  double read_bytes_per_second = 0;  ///< Reading memory in order with all threads: the median of `n_passes`.
  std::uint32_t n_passes = 0;
  /// The buffer was large enough that caches could hold little of it. Otherwise the rate is higher than that
  /// of memory.
  bool beyond_cache = false;
};

/// Measures how fast `n_threads` threads (0: the cores this process may use) read memory: the most that a
/// pass over weights in memory can reach. Reads a buffer of 512 MiB, or more where the cache is that large,
/// but no more than `max_buffer_bytes` (0: no limit of the caller's) and a quarter of the memory that is
/// free, and at least 1 MiB; it is given back before the call returns. Takes about a second. Throws Error:
/// invalid_argument for a number of threads out of range, budget when the system refuses the buffer.
MachineRates measure_machine(int n_threads, std::uint64_t max_buffer_bytes = 0);

}  // namespace sluice
