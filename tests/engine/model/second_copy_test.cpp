// Goal: a second copy changes where bytes come from and nothing else; what is no copy is refused with the
// place that differs. Method: small models on disk, copied, damaged, and read through a backend that fails
// for one of the two.
#include "engine/model/second_copy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "engine/model/model_impl.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Copied {
  test::TempDir dir;
  fs::path path, copy;
  OpenOptions options;
  engine::Hooks hooks;

  Copied() : path(test::write_tiny_model(dir.path(), {})), copy(dir / "copy.gguf") {
    fs::copy_file(path, copy);
    options.n_threads = 1;
    options.prefill_chunk = 4;
    hooks.process_bytes = 0;
    // A third of the experts fit.
    const Plan plan = engine::open_model(path, options, hooks).plan();
    options.memory_bytes = plan.floor_bytes + (plan.resident_from_bytes - plan.floor_bytes) / 3;
  }
  /// Logits of every token, one pass each, so that experts come and go.
  std::vector<float> logits(Stats* stats = nullptr) const {
    Model model = engine::open_model(path, options, hooks);
    Sequence sequence = model.new_sequence();
    std::vector<float> all;
    for (TokenId i = 0; i < 60; ++i) {
      const TokenId token = (i * i * 7 + i * 31) % 256;
      const StepItem item{&sequence, {&token, 1}, LogitsWanted::all};
      model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> row) {
        all.insert(all.end(), row.begin(), row.end());
      });
    }
    if (stats != nullptr) *stats = model.stats();
    return all;
  }
  std::string refusal(ErrorCode code = ErrorCode::invalid_file) const {
    try {
      Model::open(path, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << options.second_copy << " was accepted";
    return {};
  }
  /// Adds faults to the reads of one file.
  void break_file(const fs::path& file, storage::FaultPlan plan) {
    plan.applies_to = [file](int fd) {
      std::error_code unknown;
      return fs::equivalent("/proc/self/fd/" + std::to_string(fd), file, unknown);
    };
    hooks.wrap_backend = [plan](std::unique_ptr<storage::Backend> inner) {
      return storage::make_fault_backend(std::move(inner), plan);
    };
  }
};

void change_byte(const fs::path& path, std::uint64_t offset) {
  std::vector<std::byte> bytes = test::read_bytes(path);
  bytes.at(offset) ^= std::byte{1};
  test::write_bytes(path, bytes.data(), bytes.size());
}

TEST(SecondCopy, GivesTheSameBitsAndBothAreRead) {
  Copied copied;
  const std::vector<float> expected = copied.logits();
  copied.options.second_copy = copied.copy;
  for (const IoBackend io : {IoBackend::automatic, IoBackend::pread}) {
    copied.options.io = io;
    Stats stats;
    EXPECT_EQ(copied.logits(&stats), expected);
    ASSERT_EQ(stats.drives.size(), 2u);
    EXPECT_EQ(stats.drives[0].file, copied.path.string());
    EXPECT_EQ(stats.drives[1].file, copied.copy.string());
    for (const DriveStats& drive : stats.drives) {
      EXPECT_GT(drive.streamed_read_bytes, stats.streamed_read_bytes / 20) << drive.file;
      EXPECT_EQ(drive.n_failed_reads, 0u);
    }
    EXPECT_EQ(stats.drives[0].streamed_read_bytes + stats.drives[1].streamed_read_bytes,
              stats.streamed_read_bytes);
    EXPECT_THAT(stats.io_backend, HasSubstr("second copy"));
  }
}

TEST(SecondCopy, AMisbehavingDriveGivesTheSameBits) {
  Copied copied;
  const std::vector<float> expected = copied.logits();
  copied.options.second_copy = copied.copy;
  for (const fs::path& bad : {copied.path, copied.copy}) {
    storage::FaultPlan faults;
    faults.short_read_rate = 0.3;
    faults.eintr_rate = 0.2;
    faults.delay_rate = 0.5;
    faults.reorder = true;
    copied.break_file(bad, faults);
    Stats stats;
    EXPECT_EQ(copied.logits(&stats), expected);
    EXPECT_GT(stats.n_read_retries, 0u);
  }
}

TEST(SecondCopy, ADriveThatFailsIsReplacedByTheOtherWithAWarning) {
  Copied copied;
  const std::vector<float> expected = copied.logits();
  copied.options.second_copy = copied.copy;
  for (const fs::path& bad : {copied.path, copied.copy}) {
    storage::FaultPlan faults;
    faults.failing_ranges.push_back({0, UINT64_MAX, EIO});
    copied.break_file(bad, faults);
    ::testing::internal::CaptureStderr();
    Stats stats;
    const std::vector<float> logits = copied.logits(&stats);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(bad.string() + ": a read at offset"));
    EXPECT_EQ(logits, expected);
    EXPECT_GT(stats.drives[bad == copied.copy ? 1 : 0].n_failed_reads, 0u);
  }
}

TEST(SecondCopy, BothFailingIsTheErrorOfTheModelsFile) {
  Copied copied;
  copied.options.second_copy = copied.copy;
  storage::FaultPlan faults;
  faults.failing_ranges.push_back({0, UINT64_MAX, EIO});
  copied.hooks.wrap_backend = [faults](std::unique_ptr<storage::Backend> inner) {
    return storage::make_fault_backend(std::move(inner), faults);
  };
  try {
    copied.logits();
    FAIL() << "the read error was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr(copied.path.string()));
  }
}

TEST(SecondCopy, WhatIsNoCopyIsRefusedWithThePlaceThatDiffers) {
  Copied copied;
  copied.options.second_copy = copied.path;
  EXPECT_THAT(copied.refusal(ErrorCode::invalid_argument), HasSubstr("itself"));
  copied.options.second_copy = copied.dir / "none.gguf";
  EXPECT_THAT(copied.refusal(ErrorCode::io), HasSubstr("none.gguf"));

  copied.options.second_copy = copied.copy;
  change_byte(copied.copy, 100);
  EXPECT_THAT(copied.refusal(),
              HasSubstr("copy.gguf differs from " + copied.path.string() + " at offset 100"));
  change_byte(copied.copy, 100);
  const std::vector<TensorFact> tensors = inspect(copied.path).tensors;
  for (const TensorFact* tensor : {&tensors.front(), &tensors.back()}) {
    change_byte(copied.copy, tensor->offset + 5);
    const std::string message = copied.refusal();
    EXPECT_THAT(message, HasSubstr("in tensor " + tensor->name));
    EXPECT_THAT(message, HasSubstr("at offset " + std::to_string(tensor->offset + 5)));
    change_byte(copied.copy, tensor->offset + 5);
  }
  fs::resize_file(copied.copy, fs::file_size(copied.copy) - 1);
  EXPECT_THAT(copied.refusal(), HasSubstr("is no copy"));
}

TEST(SecondCopy, OfASplitModelIsFoundByAnyShardAndMustHaveAsMany) {
  Copied copied;
  const std::vector<float> expected = copied.logits();
  const auto shards = test::write_tiny_shards(copied.dir.path(), {}, 3);
  const fs::path folder = copied.dir / "other";
  fs::create_directory(folder);
  for (const fs::path& shard : shards) fs::copy_file(shard, folder / shard.filename());
  copied.path = shards[0];
  copied.options.second_copy = folder / shards[2].filename();
  Stats stats;
  EXPECT_EQ(copied.logits(&stats), expected);
  ASSERT_EQ(stats.drives.size(), 2u);
  EXPECT_GT(stats.drives[1].streamed_read_bytes, 0u);

  copied.options.second_copy = copied.copy;
  EXPECT_THAT(copied.refusal(ErrorCode::invalid_argument), HasSubstr("of 1 files, expected one of 3"));
  fs::remove(folder / shards[1].filename());
  copied.options.second_copy = folder / shards[0].filename();
  EXPECT_THAT(copied.refusal(ErrorCode::io), HasSubstr(shards[1].filename().string()));
}

/// A folder in memory, when that is a file system of its own.
struct MemoryFolder {
  fs::path path = "/dev/shm/sluice-test-" + std::to_string(getpid());
  MemoryFolder() {
    std::error_code refused;
    fs::create_directory(path, refused);
  }
  ~MemoryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  bool is_apart_from(const fs::path& other) const {
    struct stat own {
    }, its{};
    return stat(path.c_str(), &own) == 0 && stat(other.c_str(), &its) == 0 && own.st_dev != its.st_dev;
  }
};

TEST(SeveralDrives, OfASplitModelAreCountedOneByOne) {
  Copied copied;
  const MemoryFolder memory;
  if (!memory.is_apart_from(copied.dir.path())) GTEST_SKIP() << "/dev/shm is no second file system here";
  const std::vector<float> expected = copied.logits();
  const auto shards = test::write_tiny_shards(copied.dir.path(), {}, 3);
  fs::copy_file(shards[1], memory.path / shards[1].filename());
  fs::remove(shards[1]);
  fs::create_symlink(memory.path / shards[1].filename(), shards[1]);
  copied.path = shards[0];
  Stats stats;
  EXPECT_EQ(copied.logits(&stats), expected);
  ASSERT_EQ(stats.drives.size(), 2u);
  EXPECT_EQ(stats.drives[0].streamed_read_bytes + stats.drives[1].streamed_read_bytes,
            stats.streamed_read_bytes);
  for (const DriveStats& drive : stats.drives) {
    EXPECT_GT(drive.streamed_read_bytes, 0u) << drive.file;
    EXPECT_LE(drive.busy_ns, stats.io_busy_ns) << drive.file;
  }
  ProfileOptions options;
  options.path = copied.path;
  options.seconds = 0.1;
  Profile known;
  known.machine.emplace();
  const Profile profile = measure_profile(options, known);
  ASSERT_EQ(profile.drives.size(), 2u);
  EXPECT_NE(profile.drives[0].drive, profile.drives[1].drive);
}

TEST(SeveralDrives, ShowTheRateThatWasProfiledWithTheSameBackend) {
  Copied copied;
  copied.options.second_copy = copied.copy;
  Stats stats;
  copied.logits(&stats);
  ProfileOptions options;
  options.path = copied.path;
  Profile known;
  known.machine.emplace();
  Profile profile = measure_profile(options, known);  // The file is too small: nothing is measured.
  ASSERT_EQ(profile.drives.size(), 1u);
  profile.drives[0].caveat.clear();
  profile.drives[0].backend = "pread";
  profile.drives[0].random = {{4096, 1, 1e9}, {8192, 2, 3e9}, {65536, 2, 2e9}};
  profile.drives[0].measured_at = 1'700'000'000;
  profile.machine.reset();
  const fs::path folder = copied.dir / "profile";
  add_profiled_rates(stats, IoBackend::automatic, folder);
  EXPECT_EQ(stats.drives[0].profiled_bytes_per_second, 0.0);
  save_profile(profile, folder);
  add_profiled_rates(stats, IoBackend::pread, folder);
  EXPECT_EQ(stats.drives[0].profiled_bytes_per_second, 0.0) << "measured with another setting of --io";
  add_profiled_rates(stats, IoBackend::automatic, folder);
  for (const DriveStats& drive : stats.drives) {
    EXPECT_EQ(drive.profiled_bytes_per_second, 3e9) << drive.file;
    EXPECT_EQ(drive.profiled_at, 1'700'000'000);
  }
}

}  // namespace
}  // namespace sluice
