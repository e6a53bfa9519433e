// Goal: the yardstick for memory reads every byte it says it read, and knows the caches it must outgrow.
#include "platform/stream_read.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "platform/fake_root.hpp"

namespace sluice::platform {
namespace {

constexpr std::size_t k_piece_words = (2u << 20) / sizeof(std::uint64_t);

TEST(StreamRead, SumsEveryWordOfAnyLength) {
  for (std::size_t n = 0; n <= 40; ++n) {
    std::vector<std::uint64_t> words(n);
    // A bit per word, so that a word left out or taken twice shows; the first wraps around.
    for (std::size_t i = 0; i < n; ++i) words[i] = i == 0 ? ~std::uint64_t{0} : std::uint64_t{1} << i;
    EXPECT_EQ(sum_words(words), std::accumulate(words.begin(), words.end(), std::uint64_t{0})) << n;
  }
}

TEST(StreamRead, APassReadsTheWholeBufferWithAnyNumberOfThreads) {
  for (const std::size_t n_words : {std::size_t{1}, k_piece_words, 3 * k_piece_words + 5}) {
    for (const int n_threads : {1, 3}) {
      // Not zero: a word that is neither filled nor read would go unnoticed.
      std::vector<std::uint64_t> words(n_words, 7);
      base::ThreadPool pool(n_threads);
      const StreamRead read = measure_stream_read(words, pool);
      EXPECT_EQ(read.checksum, std::accumulate(words.begin(), words.end(), std::uint64_t{0}));
      EXPECT_GE(read.n_passes, 2u);
      EXPECT_GT(read.bytes_per_second, 0);
      if (n_words > 1) {
        EXPECT_GT(read.checksum, 0u) << "the buffer was not filled";
      }
    }
  }
}

TEST(StreamRead, TheLastCacheLevelCounts) {
  test::FakeRoot root;
  EXPECT_EQ(last_level_cache_bytes(root.path()), 0u) << "nothing is known";
  const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index";
  const auto add = [&](int index, const std::string& level, const std::string& size) {
    root.write(folder + std::to_string(index) + "/level", level + "\n");
    root.write(folder + std::to_string(index) + "/size", size + "\n");
  };
  add(0, "1", "32K");
  add(1, "1", "64K");
  add(2, "2", "1024K");
  EXPECT_EQ(last_level_cache_bytes(root.path()), std::uint64_t{1} << 20);
  add(3, "3", "32768K");
  EXPECT_EQ(last_level_cache_bytes(root.path()), std::uint64_t{32} << 20);
  add(4, "1", "16K");
  EXPECT_EQ(last_level_cache_bytes(root.path()), std::uint64_t{32} << 20) << "a lower level, named later";
  add(5, "4", "much");
  EXPECT_EQ(last_level_cache_bytes(root.path()), std::uint64_t{32} << 20) << "garbage is passed over";
}

}  // namespace
}  // namespace sluice::platform
