// Goal: the bytes this module counts are the bytes the kernel fetched for the process. Method: differences of
// /proc/self/io around direct reads of a file in the build tree.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "platform/memory.hpp"
#include "storage/random_file.hpp"
#include "storage/read_queue.hpp"

namespace sluice::storage {
namespace {

constexpr std::size_t k_file_bytes = 3 * 1024 * 1024 + 1234;
constexpr int k_attempts = 4;

struct Source {
  const char* name;
  std::function<std::unique_ptr<Backend>(std::string*)> make;
};

class Accounting : public ::testing::TestWithParam<Source> {};

TEST_P(Accounting, QueueCountsWhatTheKernelFetched) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", k_file_bytes);
  const auto file = File::open(folder / "file", true);
  if (!file->is_direct()) GTEST_SKIP() << "no direct reads here: " << file->why_not_direct();
  std::string reason;
  auto backend = GetParam().make(&reason);
  if (!backend) GTEST_SKIP() << reason;
  {
    // Settles the pages just written, and finds out whether this drive's reads are accounted at all.
    std::byte first[1];
    const auto before = platform::read_storage_bytes();
    file->read(0, first, 1);
    const auto after = platform::read_storage_bytes();
    if (!before || !after) GTEST_SKIP() << "the kernel does not count this process's reads";
    if (*after - *before == 0) GTEST_SKIP() << "this file system's direct reads are not counted";
  }
  ReadQueue queue(std::move(backend), {.piece_bytes = 64 * 1024, .max_requests = 8});
  auto buffer = platform::MappedRegion::allocate(8 * 1024 * 1024, true);
  std::vector<ReadRequest> requests;
  std::size_t used = 0;
  const std::pair<std::uint64_t, std::uint64_t> ranges[] = {{0, 1'000'000},
                                                            {1'234'567, 300'000},
                                                            {4096, 4096},
                                                            {k_file_bytes - 1, 1},
                                                            {k_file_bytes - 70'000, 70'000}};
  for (const auto& [offset, length] : ranges) {
    requests.push_back({file.get(), offset, length, buffer.data() + used, requests.size(), Priority::demand});
    used += (read_window(offset, length, file->alignment_bytes()).length + 4095) / 4096 * 4096;
  }
  ASSERT_LE(used, buffer.size());
  std::uint64_t windows = 0;
  for (const auto& [offset, length] : ranges) {
    windows += read_window(offset, length, file->alignment_bytes()).length;
  }
  // The kernel also counts pages of this very program that are touched for the first time, so a few tries may
  // be needed; a wrong count of ours fits in none.
  std::uint64_t counted = 0, fetched = 1;
  for (int attempt = 0; attempt < k_attempts && counted != fetched; ++attempt) {
    const std::uint64_t counted_before = queue.statistics().read_bytes;
    const std::uint64_t before = *platform::read_storage_bytes();
    queue.submit(requests);
    std::vector<ReadResult> results(requests.size());
    std::size_t n = 0;
    while (n < results.size()) n += queue.wait(std::span(results).subspan(n), 1);
    fetched = *platform::read_storage_bytes() - before;
    counted = queue.statistics().read_bytes - counted_before;
    for (const ReadResult& result : results) EXPECT_EQ(result.error, 0);
    EXPECT_EQ(counted, windows);
  }
  EXPECT_EQ(counted, fetched);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, Accounting,
    ::testing::Values(Source{"Uring", [](std::string* reason) { return make_uring_backend(16, reason); }},
                      Source{"Pread", [](std::string*) { return make_pread_backend(16, 3); }}),
    [](const auto& source) { return source.param.name; });

TEST(FileAccounting, OpeningAndReadingCountWhatTheKernelFetched) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", k_file_bytes);
  { File::open(folder / "file", true); }  // Settles the pages just written.
  std::unique_ptr<File> file;
  std::uint64_t opening = 0;
  for (int attempt = 0; attempt < k_attempts && (file == nullptr || opening != file->probe_bytes());
       ++attempt) {
    const auto before = platform::read_storage_bytes();
    file = File::open(folder / "file", true);
    const auto after = platform::read_storage_bytes();
    if (!file->is_direct()) GTEST_SKIP() << "no direct reads here: " << file->why_not_direct();
    if (!before || !after || *after == *before) GTEST_SKIP() << "direct reads are not counted here";
    opening = *after - *before;
  }
  EXPECT_EQ(opening, file->probe_bytes());
  std::vector<std::byte> out(k_file_bytes);
  const std::pair<std::uint64_t, std::uint64_t> ranges[] = {
      {0, k_file_bytes}, {777, 1}, {4095, 2}, {k_file_bytes - 3, 3}, {500'000, 1'500'000}};
  for (const auto& [offset, length] : ranges) {
    std::uint64_t counted = 0, fetched = 1;
    for (int attempt = 0; attempt < k_attempts && counted != fetched; ++attempt) {
      counted = 0;
      const std::uint64_t start = *platform::read_storage_bytes();
      file->read(offset, out.data(), length, &counted);
      fetched = *platform::read_storage_bytes() - start;
    }
    EXPECT_EQ(counted, fetched) << offset << " " << length;
  }
}

}  // namespace
}  // namespace sluice::storage
