// Goal: whatever a path names, opening it either works or says why not; whatever range is read, the bytes are
// right with and without O_DIRECT.
#include "storage/file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "sluice/error.hpp"
#include "storage/random_file.hpp"
#include "support/resource_limit.hpp"
#include "support/temp_dir.hpp"

namespace sluice::storage {
namespace {

using ::testing::HasSubstr;

std::string open_error(const std::filesystem::path& path, ErrorCode code = ErrorCode::io) {
  try {
    File::open(path.string(), true);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    return error.what();
  }
  return "no error";
}

TEST(FileOpen, NamesWhatIsWrongWithThePath) {
  test::TempDir folder;
  EXPECT_THAT(open_error(folder / "missing"), HasSubstr("No such file"));
  EXPECT_THAT(open_error(folder.path()), HasSubstr("a directory"));
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(open_error(folder / "pipe"), HasSubstr("a pipe"));  // And does not wait for a writer.
  EXPECT_THAT(open_error("/dev/null"), HasSubstr("a character device"));
  test::write_bytes(folder / "empty", "", 0);
  EXPECT_THAT(open_error(folder / "empty", ErrorCode::invalid_file), HasSubstr("empty"));
  test::write_bytes(folder / "file", "x", 1);
  EXPECT_THAT(open_error(folder / "file" / "below"), HasSubstr("Not a directory"));
}

TEST(FileOpen, NamesMissingPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  test::TempDir folder;
  test::write_bytes(folder / "secret", "x", 1);
  ASSERT_EQ(chmod((folder / "secret").c_str(), 0), 0);
  EXPECT_THAT(open_error(folder / "secret"), HasSubstr("Permission denied"));
}

TEST(FileOpen, NamesTheLimitOfDescriptorsInsteadOfReadingThroughThePageCache) {
  test::TempDir folder;
  test::write_random_file(folder / "file", 8192);
  for (const int n_free : {0, 1}) {
    std::string message;
    {
      const test::ResourceLimit limit(RLIMIT_NOFILE, test::ResourceLimit::descriptors(n_free));
      message = open_error(folder / "file");
    }
    EXPECT_THAT(message, HasSubstr("ulimit -n")) << n_free << " descriptors were free";
  }
}

TEST(FileOpen, GivesDescriptorsThatBlockAndDoNotSurviveExec) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", 10'000);
  const auto file = File::open(folder / "file", true);
  EXPECT_EQ(file->size_bytes(), 10'000u);
  for (int fd : {file->buffered_fd(), file->direct_fd()}) {
    if (fd < 0) continue;
    EXPECT_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(file->is_direct(), file->why_not_direct().empty()) << file->why_not_direct();
  EXPECT_EQ(file->probe_bytes(), file->is_direct() ? file->alignment_bytes() : 0);
}

TEST(FileOpen, AlignmentIsAPowerOfTwoInItsLimits) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", 1);
  for (bool direct : {false, true}) {
    const auto file = File::open(folder / "file", direct);
    const std::uint32_t alignment = file->alignment_bytes();
    EXPECT_EQ(alignment & (alignment - 1), 0u);
    EXPECT_GE(alignment, 512u);
    EXPECT_LE(alignment, 1u << 20);
  }
}

TEST(FileOpen, DirectIsOnlyOnRequest) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", 100);
  const auto file = File::open(folder / "file", false);
  EXPECT_FALSE(file->is_direct());
  EXPECT_FALSE(file->why_not_direct().empty());
}

TEST(FileOpen, DirectWorksInTheBuildTree) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", 100'000);
  const auto file = File::open(folder / "file", true);
  if (!file->is_direct()) GTEST_SKIP() << file->why_not_direct();
  EXPECT_NE(fcntl(file->direct_fd(), F_GETFL) & O_DIRECT, 0);
  EXPECT_EQ(fcntl(file->buffered_fd(), F_GETFL) & O_DIRECT, 0);
}

class FileRead : public ::testing::TestWithParam<bool> {};

TEST_P(FileRead, FillsEveryRangeOfFilesOfEverySize) {
  test::WorkDir folder;
  for (std::size_t size : {1u, 511u, 512u, 4095u, 4096u, 4097u, 100'001u, 3'000'000u}) {
    const auto expected = test::write_random_file(folder / "file", size, size);
    const auto file = File::open(folder / "file", GetParam());
    std::vector<std::byte> out(size + 2);
    for (std::size_t offset :
         {std::size_t{0}, std::size_t{1}, size / 3, size / 2 & ~std::size_t{4095}, size - 1}) {
      for (std::size_t length : {std::size_t{1}, std::size_t{511}, std::size_t{4096}, size}) {
        if (offset > size) continue;
        const std::size_t n = std::min(length, size - offset);
        std::fill(out.begin(), out.end(), std::byte{0xee});
        std::uint64_t counted = 5;
        file->read(offset, out.data() + 1, n, &counted);
        ASSERT_EQ(std::memcmp(out.data() + 1, expected.data() + offset, n), 0)
            << size << " " << offset << " " << n;
        EXPECT_EQ(out[0], std::byte{0xee});
        EXPECT_EQ(out[n + 1], std::byte{0xee});
        EXPECT_GE(counted, 5 + n);
        EXPECT_LE(counted, 5 + n + 2 * file->alignment_bytes() * (1 + n / (1u << 20)));
      }
    }
  }
}

TEST_P(FileRead, FillsAlignedBuffersToo) {
  test::WorkDir folder;
  const auto expected = test::write_random_file(folder / "file", 9 * 1024 * 1024 + 777);
  const auto file = File::open(folder / "file", GetParam());
  constexpr std::size_t k_room = 10 * 1024 * 1024;
  std::unique_ptr<std::byte, decltype(&std::free)> out(
      static_cast<std::byte*>(std::aligned_alloc(1u << 20, k_room)), &std::free);
  std::uint64_t counted = 0;
  file->read(0, out.get(), expected.size(), &counted);
  EXPECT_EQ(std::memcmp(out.get(), expected.data(), expected.size()), 0);
  EXPECT_GE(counted, expected.size());
  EXPECT_LT(counted, expected.size() + file->alignment_bytes());
}

TEST(FileBuffered, LoadingLeavesNothingInThePageCache) {
  test::WorkDir folder;
  constexpr std::size_t k_bytes = 20 * 1024 * 1024;
  const auto expected = test::write_random_file(folder / "file", k_bytes);
  const auto file = File::open(folder / "file", false);
  // Pages not yet written cannot be dropped, and those of writing may be of any size.
  ASSERT_EQ(fdatasync(file->buffered_fd()), 0);
  ASSERT_EQ(posix_fadvise(file->buffered_fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
  std::vector<std::byte> out(k_bytes - 5001);
  file->read(5001, out.data(), out.size());
  EXPECT_EQ(std::memcmp(out.data(), expected.data() + 5001, out.size()), 0);
  void* const mapping = mmap(nullptr, k_bytes, PROT_READ, MAP_SHARED, file->buffered_fd(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  std::vector<unsigned char> present(k_bytes / 4096);
  const int error = mincore(mapping, k_bytes, present.data());
  munmap(mapping, k_bytes);
  ASSERT_EQ(error, 0);
  const auto n_cached =
      std::count_if(present.begin(), present.end(), [](auto page) { return (page & 1) != 0; });
  struct statfs system {};
  ASSERT_EQ(fstatfs(file->buffered_fd(), &system), 0);
  constexpr auto k_tmpfs_magic = 0x01021994;
  if (system.f_type == k_tmpfs_magic) GTEST_SKIP() << "tmpfs is nothing but page cache";
  // Allowed: one large page at each end that the range covers only in part; far less than was read.
  EXPECT_LE(n_cached, 2 * 2 * 1024 * 1024 / 4096);
  EXPECT_LT(n_cached, static_cast<std::ptrdiff_t>(present.size() / 4));
}

TEST_P(FileRead, RefusesRangesBeyondTheEnd) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", 1000);
  const auto file = File::open(folder / "file", GetParam());
  std::byte out[16];
  file->read(1000, out, 0);
  const std::pair<std::uint64_t, std::uint64_t> ranges[] = {
      {1000, 1}, {990, 11}, {UINT64_MAX, 2}, {2, UINT64_MAX}};
  for (const auto& [offset, bytes] : ranges) {
    try {
      file->read(offset, out, bytes);
      ADD_FAILURE() << offset << " " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_THAT(error.what(), HasSubstr(file->path()));
      EXPECT_THAT(error.what(), HasSubstr("has 1000 bytes"));
    }
  }
}

TEST_P(FileRead, ReportsAFileThatShrank) {
  test::WorkDir folder;
  test::write_random_file(folder / "file", 100'000);
  const auto file = File::open(folder / "file", GetParam());
  std::filesystem::resize_file(folder / "file", 50'001);
  std::vector<std::byte> out(100'000);
  file->read(40'000, out.data(), 10'001);
  for (std::uint64_t offset : {0u, 49'000u, 50'001u, 60'000u}) {
    try {
      file->read(offset, out.data(), 100'000 - offset);
      ADD_FAILURE() << offset;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_THAT(error.what(), HasSubstr("truncated"));
    }
  }
}

TEST_P(FileRead, IsThreadSafe) {
  test::WorkDir folder;
  const auto expected = test::write_random_file(folder / "file", 300'000);
  const auto file = File::open(folder / "file", GetParam());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> out(1000);
      for (std::size_t offset = t * 7; offset + 1000 < expected.size(); offset += 9999) {
        file->read(offset, out.data(), 1000);
        EXPECT_EQ(std::memcmp(out.data(), expected.data() + offset, 1000), 0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(FileRead, ByteSourceServesAnyOrderOfReads) {
  test::WorkDir folder;
  const auto expected = test::write_random_file(folder / "file", 300'017);
  std::uint64_t counted = 0;
  const auto file = File::open(folder / "file", GetParam());
  const auto source = make_byte_source(*file, &counted);
  EXPECT_EQ(source->size(), expected.size());
  EXPECT_EQ(source->name(), (folder / "file").string());
  const std::uint64_t probed = counted;
  std::vector<std::byte> out(expected.size());
  std::uint64_t offset = 0;
  for (std::size_t n = 1; offset + n <= expected.size(); offset += n, n = n % 977 + 13) {
    source->read(offset, {out.data(), n});
    ASSERT_EQ(std::memcmp(out.data(), expected.data() + offset, n), 0) << offset;
  }
  // Small reads in order fetch every byte about once: windows begin at a block, so neighbours share at most
  // one.
  EXPECT_LE(counted - probed, expected.size() + 6 * 4096);
  for (std::uint64_t at : {299'999u, 3u, 150'000u, 65'536u, 65'535u, 0u}) {
    for (std::size_t n : {std::size_t{1}, std::size_t{18}, std::size_t{70'000}, expected.size()}) {
      const std::size_t length = std::min(n, expected.size() - at);
      source->read(at, {out.data(), length});
      ASSERT_EQ(std::memcmp(out.data(), expected.data() + at, length), 0) << at << " " << length;
    }
  }
  source->read(expected.size(), {});
}

INSTANTIATE_TEST_SUITE_P(Modes, FileRead, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "WantDirect" : "Buffered"; });

}  // namespace
}  // namespace sluice::storage
