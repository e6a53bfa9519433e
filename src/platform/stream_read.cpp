#include "platform/stream_read.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/units.hpp"
#include "platform/text_files.hpp"

namespace sluice::platform {
namespace {

/// Long enough for the prefetchers, short enough that a thread which loses its core holds up little.
constexpr std::size_t k_piece_words = 2 * base::k_mib / sizeof(std::uint64_t);
constexpr std::uint64_t k_measure_ns = 500'000'000;
constexpr std::uint32_t k_min_passes = 2, k_max_passes = 64;
constexpr int k_max_cache_indexes = 16;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

/// A counter's neighbour on the same cache line would be slowed down by it.
struct alignas(64) PaddedSum {
  std::uint64_t value = 0;
};

}  // namespace

std::uint64_t last_level_cache_bytes(const std::string& root) {
  std::uint64_t best_level = 0, bytes = 0;
  for (int i = 0; i < k_max_cache_indexes; ++i) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const auto level_text = read_text_file(folder + "level");
    const auto size_text = read_text_file(folder + "size");
    if (!level_text || !size_text) continue;
    const auto level = parse_number(trimmed(*level_text));
    const auto size = base::parse_bytes(trimmed(*size_text));  // "32768K"
    if (!level || !size || *level <= best_level) continue;
    best_level = *level;
    bytes = *size;
  }
  return bytes;
}

std::uint64_t sum_words(std::span<const std::uint64_t> words) noexcept {
  constexpr std::size_t k_lanes = 8;
  std::array<std::uint64_t, k_lanes> sums{};
  const std::uint64_t* next = words.data();
  const std::uint64_t* const end = next + words.size();
  const std::uint64_t* const whole_end = next + words.size() / k_lanes * k_lanes;
  for (; next != whole_end; next += k_lanes) {
    for (std::size_t lane = 0; lane < k_lanes; ++lane) sums[lane] += next[lane];
  }
  std::uint64_t sum = 0;
  for (; next != end; ++next) sum += *next;
  for (const std::uint64_t lane : sums) sum += lane;
  return sum;
}

StreamRead measure_stream_read(std::span<std::uint64_t> words, base::ThreadPool& pool) {
  SLUICE_CHECK(!words.empty());
  const std::size_t n_pieces = (words.size() + k_piece_words - 1) / k_piece_words;
  const auto piece = [words](std::size_t index) {
    const std::size_t begin = index * k_piece_words;
    return words.subspan(begin, std::min(k_piece_words, words.size() - begin));
  };
  // Written first: the system may back memory that was never written with one and the same page of zeros.
  pool.run(n_pieces, [&](std::size_t index, int) {
    std::uint64_t value = index;
    for (std::uint64_t& word : piece(index)) word = value++;
  });

  std::vector<PaddedSum> sums(static_cast<std::size_t>(pool.n_threads()));
  const auto pass = [&] {
    for (PaddedSum& sum : sums) sum.value = 0;
    pool.run(n_pieces, [&](std::size_t index, int thread) {
      sums[static_cast<std::size_t>(thread)].value += sum_words(piece(index));
    });
    std::uint64_t total = 0;
    for (const PaddedSum& sum : sums) total += sum.value;
    return total;
  };
  StreamRead result;
  result.checksum = pass();
  std::vector<std::uint64_t> pass_ns;
  const std::uint64_t start = base::now_ns();
  std::uint64_t now = start;
  while (result.n_passes < k_max_passes && (result.n_passes < k_min_passes || now - start < k_measure_ns)) {
    const std::uint64_t before = base::now_ns();
    const std::uint64_t checksum = pass();
    now = base::now_ns();
    SLUICE_CHECK(checksum == result.checksum);
    pass_ns.push_back(std::max<std::uint64_t>(now - before, 1));
    ++result.n_passes;
  }
  // The median, as for whatever is compared with it: the best pass is luck on a shared machine.
  std::nth_element(pass_ns.begin(), pass_ns.begin() + result.n_passes / 2, pass_ns.end());
  const std::uint64_t median_ns = pass_ns[result.n_passes / 2];
  result.bytes_per_second = static_cast<double>(words.size_bytes()) * 1e9 / static_cast<double>(median_ns);
  return result;
}

}  // namespace sluice::platform
