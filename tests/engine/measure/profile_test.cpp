// Goal: the knee is where it should be, kept results come back as they were and only on the machine they are
// of, and what cannot be measured is said.
#include "sluice/profile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/thread_pool.hpp"
#include "engine/measure/profile_drives.hpp"
#include "engine/measure/profile_kernels.hpp"
#include "sluice/error.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t k_day = 86400;

TEST(Knee, IsTheFewestBytesInFlightThatReachTheShare) {
  const std::vector<ReadRate> rates = {{65536, 1, 1e9},    {65536, 32, 4.79e9},  {262144, 4, 4.7e9},
                                       {262144, 8, 4.8e9}, {4194304, 1, 4.76e9}, {4194304, 32, 5e9}};
  EXPECT_EQ(best(rates)->bytes_per_second, 5e9);
  // 95 % of the best are 4.75e9: of 2 MiB, 2 MiB, 4 MiB and 128 MiB in flight the faster of the least.
  EXPECT_EQ(knee(rates)->block_bytes, 262144u);
  EXPECT_EQ(knee(rates)->depth, 8u);
  EXPECT_EQ(knee(rates, 0.94)->depth, 4u);
  EXPECT_EQ(knee(rates, 1.0)->depth, 32u);
  EXPECT_EQ(knee(rates, 1.0)->block_bytes, 4194304u);
}

TEST(Knee, NothingHasNone) {
  EXPECT_FALSE(knee({}));
  EXPECT_FALSE(best({}));
  const std::vector<ReadRate> one = {{4096, 1, 1.0}};
  EXPECT_EQ(knee(one)->block_bytes, 4096u);
}

/// A folder for results and a small file whose drive they are of.
class ProfileStore : public testing::Test {
 protected:
  ProfileStore() {
    const std::string text = "no model";
    test::write_bytes(dir_ / "file", text.data(), text.size());
    options_.path = dir_ / "file";
    profile_.machine.emplace();
    profile_.machine->machine = machine_info();
    profile_.machine->memory = {machine_info().n_usable_cpus, 1u << 20, 2u << 20, 3.5e9, 7, true};
    profile_.machine->kernels = {{"Q4_K", 1, 1.25e11}, {"Q4_K", 64, 3e11}};
    profile_.machine->measured_at = std::time(nullptr) - 3 * k_day;
    profile_.drives = engine::find_drives(options_);
    DriveProfile& drive = profile_.drives.at(0);
    drive.caveat.clear();
    drive.backend = "io_uring";
    drive.random = {{65536, 1, 1e9}, {65536, 4, 2.5e9}};
    drive.sequential = ReadRate{4194304, 8, 3e9};
    drive.read_bytes = 12345;
    drive.measured_at = profile_.machine->measured_at;
  }

  Profile load(std::int64_t max_age = 30 * k_day) {
    warnings_.clear();
    return load_profile(options_, folder(), max_age,
                        [this](const std::string& text) { warnings_.push_back(text); });
  }
  fs::path folder() const { return dir_ / "cache/sluice/profile"; }
  fs::path kept(const std::string& kind) const {
    for (const auto& entry : fs::directory_iterator(folder())) {
      if (entry.path().filename().string().starts_with(kind)) return entry.path();
    }
    ADD_FAILURE() << "no file of kind " << kind;
    return {};
  }
  void replace_in(const fs::path& file, const std::string& from, const std::string& to) {
    std::string text = test::read_text(file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    test::write_bytes(file, text.data(), text.size());
  }

  test::TempDir dir_;
  ProfileOptions options_;
  Profile profile_;
  std::vector<std::string> warnings_;
};

TEST_F(ProfileStore, BringsBackWhatWasKept) {
  save_profile(profile_, folder());
  const Profile loaded = load();
  EXPECT_TRUE(warnings_.empty());
  ASSERT_TRUE(loaded.machine);
  EXPECT_EQ(loaded.machine->measured_at, profile_.machine->measured_at);
  EXPECT_EQ(loaded.machine->memory.read_bytes_per_second, 3.5e9);
  EXPECT_EQ(loaded.machine->memory.n_passes, 7u);
  EXPECT_TRUE(loaded.machine->memory.beyond_cache);
  ASSERT_EQ(loaded.machine->kernels.size(), 2u);
  EXPECT_EQ(loaded.machine->kernels[1].type, "Q4_K");
  EXPECT_EQ(loaded.machine->kernels[1].n_rows, 64u);
  EXPECT_EQ(loaded.machine->kernels[1].products_per_second, 3e11);
  ASSERT_EQ(loaded.drives.size(), 1u);
  const DriveProfile& drive = loaded.drives[0];
  EXPECT_EQ(drive.drive, profile_.drives[0].drive);
  EXPECT_EQ(drive.file, options_.path.string());
  EXPECT_EQ(drive.backend, "io_uring");
  EXPECT_EQ(drive.read_bytes, 12345u);
  ASSERT_EQ(drive.random.size(), 2u);
  EXPECT_EQ(drive.random[1].depth, 4u);
  EXPECT_EQ(drive.random[1].bytes_per_second, 2.5e9);
  ASSERT_TRUE(drive.sequential);
  EXPECT_EQ(drive.sequential->block_bytes, 4194304u);
  EXPECT_EQ(drive.measured_at, profile_.drives[0].measured_at);
}

TEST_F(ProfileStore, AnEmptyFolderHasNothingAndSaysNothing) {
  const Profile loaded = load();
  EXPECT_FALSE(loaded.machine);
  EXPECT_TRUE(loaded.drives.empty());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(ProfileStore, LeavesOutWhatIsTooOld) {
  save_profile(profile_, folder());
  const Profile loaded = load(2 * k_day);
  EXPECT_FALSE(loaded.machine);
  EXPECT_TRUE(loaded.drives.empty());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(ProfileStore, KeepsNothingWithACaveat) {
  profile_.drives[0].caveat = "rates of the page cache";
  save_profile(profile_, folder());
  EXPECT_TRUE(load().drives.empty());
  EXPECT_TRUE(load().machine);
}

TEST_F(ProfileStore, ReplacesWhatWasKeptBeforeAndLeavesNothingElse) {
  save_profile(profile_, folder());
  profile_.drives[0].read_bytes = 54321;
  save_profile(profile_, folder());
  EXPECT_EQ(load().drives.at(0).read_bytes, 54321u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 2);
}

TEST_F(ProfileStore, AskingForAnotherBackendFindsNothing) {
  save_profile(profile_, folder());
  options_.io = IoBackend::pread;
  EXPECT_TRUE(load().drives.empty());
}

TEST_F(ProfileStore, DamagedFilesAreIgnoredWithOneLineEach) {
  const std::vector<std::pair<std::string, std::string>> damages = {
      {"{", "["},
      {"\"format\": 1", "\"format\": 2"},
      {"\"format\": 1", "\"format\": -1"},
      {"\"kind\": \"", "\"kind\": \"x"},
      {"\"measured_at\": ", "\"measured_at\": 9"},
      {"\"measured_at\": ", "\"measured_ad\": "},
      {"\"bytes_per_second\": ", "\"bytes_per_second\": -"},
      {"\"bytes_per_second\": ", "\"bytes_per_second\": 0, \"x\": "},
      {"\"n_cpus\": ", "\"n_cpus\": 9"},
  };
  for (const auto& [from, to] : damages) {
    save_profile(profile_, folder());
    replace_in(kept("machine"), from, to);
    replace_in(kept("drive"), from, to);
    const Profile loaded = load();
    EXPECT_FALSE(loaded.machine) << to;
    EXPECT_TRUE(loaded.drives.empty()) << to;
    ASSERT_EQ(warnings_.size(), 2u) << to;
    for (const std::string& warning : warnings_) {
      EXPECT_NE(warning.find("is not used"), std::string::npos) << warning;
      EXPECT_EQ(warning.find('\n'), std::string::npos) << warning;
    }
  }
}

TEST_F(ProfileStore, NoCutOfAFileIsUsed) {
  save_profile(profile_, folder());
  const fs::path file = kept("drive");
  const std::string text = test::read_text(file);
  for (std::size_t n = 0; n + 2 < text.size(); n += 7) {
    test::write_bytes(file, text.data(), n);
    EXPECT_TRUE(load().drives.empty()) << n;
    EXPECT_EQ(warnings_.size(), 1u) << n;
  }
}

TEST_F(ProfileStore, AFolderThatCannotBeMadeIsNamed) {
  try {
    save_profile(profile_, dir_ / "file/profile");
    FAIL() << "was kept";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("file/profile"), std::string::npos) << error.what();
  }
}

TEST(ProfileFolder, FollowsTheEnvironment) {
  const char* cache_before = std::getenv("XDG_CACHE_HOME");
  const std::string cache = cache_before == nullptr ? "" : cache_before;
  const char* home_before = std::getenv("HOME");
  const std::string home = home_before == nullptr ? "" : home_before;
  setenv("XDG_CACHE_HOME", "/c", 1);
  EXPECT_EQ(profile_folder(), "/c/sluice/profile");
  // The specification wants relative paths to be ignored.
  setenv("XDG_CACHE_HOME", "c", 1);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(profile_folder(), "/h/.cache/sluice/profile");
  unsetenv("HOME");
  EXPECT_EQ(profile_folder(), "");
  cache_before == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  if (home_before != nullptr) setenv("HOME", home.c_str(), 1);
}

/// A file of this size that takes no room.
void write_holes(const fs::path& path, std::uint64_t bytes) {
  std::ofstream(path).put('x');
  fs::resize_file(path, bytes);
}

class ProfileMeasure : public ProfileStore {
 protected:
  ProfileMeasure() {
    known_.machine = profile_.machine;
    options_.seconds = 0.2;
  }
  Profile known_;
};

TEST_F(ProfileMeasure, SmallFilesAreNotMeasuredAndItIsSaid) {
  const Profile measured = measure_profile(options_, known_);
  ASSERT_EQ(measured.drives.size(), 1u);
  EXPECT_FALSE(measured.drives[0].has_rates());
  EXPECT_NE(measured.drives[0].caveat.find("256 MiB"), std::string::npos) << measured.drives[0].caveat;
  EXPECT_EQ(measured.machine->measured_at, known_.machine->measured_at);
}

TEST_F(ProfileMeasure, FilesWithHolesAreMeasuredButNotKept) {
  write_holes(dir_ / "holes", k_min_profile_file_bytes);
  options_.path = dir_ / "holes";
  std::vector<std::string> steps;
  const Profile measured =
      measure_profile(options_, known_, [&](const std::string& what) { steps.push_back(what); });
  ASSERT_EQ(measured.drives.size(), 1u);
  const DriveProfile& drive = measured.drives[0];
  EXPECT_EQ(steps.size(), 1u);
  EXPECT_TRUE(drive.has_rates());
  EXPECT_GT(drive.read_bytes, 0u);
  EXPECT_FALSE(drive.backend.empty());
  EXPECT_NE(drive.caveat, "");
  save_profile(measured, folder());
  EXPECT_TRUE(load().drives.empty());
}

TEST_F(ProfileMeasure, AFolderStandsForItsLargestFile) {
  fs::create_directory(dir_ / "models");
  write_holes(dir_ / "models/a", 1000);
  write_holes(dir_ / "models/b", 3000);
  fs::create_directory(dir_ / "models/z");
  options_.path = dir_ / "models";
  const Profile measured = measure_profile(options_, known_);
  EXPECT_EQ(measured.drives.at(0).file, (dir_ / "models/b").string());
  options_.path = dir_ / "models/z";
  EXPECT_THROW(measure_profile(options_, known_), Error);
}

TEST_F(ProfileMeasure, TakesOverTheDrivesThatAreKnown) {
  known_.drives = profile_.drives;
  const Profile measured = measure_profile(options_, known_);
  ASSERT_EQ(measured.drives.size(), 1u);
  EXPECT_EQ(measured.drives[0].random.size(), 2u);
  EXPECT_EQ(measured.drives[0].measured_at, known_.drives[0].measured_at);
}

TEST_F(ProfileMeasure, RefusesSecondsOutOfRangeAndMissingFiles) {
  for (const double seconds : {0.0, -1.0, 1e9, std::nan("")}) {
    options_.seconds = seconds;
    EXPECT_THROW(measure_profile(options_, known_), Error);
  }
  options_.seconds = 0.2;
  options_.path = dir_ / "missing";
  EXPECT_THROW(measure_profile(options_, known_), Error);
}

TEST_F(ProfileMeasure, StopsWhenAsked) {
  const std::atomic<bool> stop{true};
  options_.cancel = &stop;
  try {
    measure_profile(options_, known_);
    FAIL() << "was not stopped";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
}

TEST(ProfileKernels, EveryTypeHasARateForOneAndForManyRows) {
  base::ThreadPool pool(2);
  const std::vector<KernelRate> rates =
      engine::measure_kernels(pool, platform::choose_isa(), /*seconds=*/0.02, nullptr);
  ASSERT_GE(rates.size(), 12u);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    EXPECT_GT(rates[i].products_per_second, 0) << rates[i].type;
    EXPECT_EQ(rates[i].n_rows, i % 2 == 0 ? 1u : 64u);
    if (i % 2 == 1) {
      EXPECT_EQ(rates[i].type, rates[i - 1].type);
    }
  }
}

}  // namespace
}  // namespace sluice
