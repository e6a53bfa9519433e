#include "sluice/machine.hpp"

#include <algorithm>
#include <span>

#include "base/checked.hpp"
#include "base/thread_pool.hpp"
#include "base/units.hpp"
#include "engine/plan/machine_facts.hpp"
#include "platform/cpu_features.hpp"
#include "platform/memory.hpp"
#include "platform/stream_read.hpp"
#include "platform/text_files.hpp"
#include "sluice/options.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t k_buffer_bytes = 512 * base::k_mib;
constexpr std::uint64_t k_min_buffer_bytes = base::k_mib;
/// Buffers this many times the cache: what stays of one pass for the next is little.
constexpr std::uint64_t k_times_cache = 4;
/// Taken where the system does not say: more than one group of cores shares on common servers.
constexpr std::uint64_t k_assumed_cache_bytes = 64 * base::k_mib;
/// A system that reports nonsense must not make the buffer huge.
constexpr std::uint64_t k_max_cache_bytes = base::k_gib;

std::string kernel_name() {
  const auto release = platform::read_text_file("/proc/sys/kernel/osrelease");
  if (!release) return "unknown";
  return "Linux " + release->substr(0, release->find_first_of(" \n"));
}

}  // namespace

MachineInfo machine_info() {
  MachineInfo info;
  info.cpu_model = platform::cpu_model_name();
  info.kernel = kernel_name();
  info.isa = platform::isa_name(platform::choose_isa());
  info.n_usable_cpus = platform::usable_cpus();
  info.memory_bytes = platform::read_memory_limits().total_bytes;
  return info;
}

MachineRates measure_machine(int n_threads, std::uint64_t max_buffer_bytes) {
  OpenOptions options;
  options.n_threads = n_threads;
  MachineRates rates;
  rates.n_threads = engine::thread_count(options);
  rates.cache_bytes = platform::last_level_cache_bytes();
  const std::uint64_t cache =
      rates.cache_bytes == 0 ? k_assumed_cache_bytes : std::min(rates.cache_bytes, k_max_cache_bytes);
  std::uint64_t bytes = std::max(k_buffer_bytes, k_times_cache * cache);
  bytes = std::min(bytes, engine::machine_facts().default_budget_bytes / 4);
  if (max_buffer_bytes != 0) bytes = std::min(bytes, max_buffer_bytes);
  bytes = std::max(base::align_down(bytes, base::k_mib), k_min_buffer_bytes);
  rates.buffer_bytes = bytes;
  rates.beyond_cache = bytes >= k_times_cache * cache;

  const platform::MappedRegion region = platform::MappedRegion::allocate(bytes, /*prefault=*/true);
  base::ThreadPool pool(rates.n_threads);
  rates.n_threads = pool.n_threads();
  const std::span words(reinterpret_cast<std::uint64_t*>(region.data()), bytes / sizeof(std::uint64_t));
  const platform::StreamRead read = platform::measure_stream_read(words, pool);
  rates.read_bytes_per_second = read.bytes_per_second;
  rates.n_passes = read.n_passes;
  return rates;
}

}  // namespace sluice
