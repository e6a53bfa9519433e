#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/thread_pool.hpp"

namespace sluice::platform {

/// Size of the last level of the first core's cache, from /sys below `root`; 0 where the system does not say.
std::uint64_t last_level_cache_bytes(const std::string& root = "");

/// Sum of all words, wrapping. Reads each once, in order, with enough independent additions that memory is
/// the limit and not the adder.
std::uint64_t sum_words(std::span<const std::uint64_t> words) noexcept;

/// How fast memory was read.
struct StreamRead {
  double bytes_per_second = 0;  ///< Of the median pass.
  std::uint32_t n_passes = 0;   ///< That were timed.
  std::uint64_t checksum = 0;   ///< Of one pass. Makes the reads needed, and tests can compare it.
};

/// Fills the words with a pattern and reads all of them several times with all threads of the pool, each
/// reading long pieces of its own. Takes half a second or two passes, whichever is more, after one pass that
/// is not timed. Requires at least one word.
StreamRead measure_stream_read(std::span<std::uint64_t> words, base::ThreadPool& pool);

}  // namespace sluice::platform
