// Goal: facts about a machine are judged as they should be: what is bad is named, with a cure, and what is
// good is not complained about. Method: invented facts, one changed at a time.
#include "engine/measure/doctor_judge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice::engine {
namespace {

constexpr std::uint64_t k_gib = std::uint64_t{1} << 30;

/// A machine that is in order, with a model that fits.
DoctorFacts good() {
  DoctorFacts facts;
  platform::HealthFacts& health = facts.health;
  health.kernel_major = 6;
  health.kernel_minor = 1;
  health.memory.total_bytes = 32 * k_gib;
  health.memory.available_bytes = 30 * k_gib;
  health.default_budget = {28 * k_gib, platform::DefaultBudget::Source::available_memory};
  health.n_machine_cpus = health.n_usable_cpus = 8;
  health.load = 0.3;
  health.memory_pressure = 0.0;
  health.huge_pages = "madvise";
  health.io_uring_disabled = 0;
  health.max_open_files = 1024;
  health.hottest_celsius = 55;
  health.counters.n_swapped_in = health.counters.n_swapped_out = 0;
  health.counters.n_throttles = 0;
  facts.later = health.counters;
  facts.machine_profile_age_seconds = 1000;
  facts.max_profile_age_seconds = 30 * 86400;
  ModelHealth& model = facts.model.emplace();
  model.path = "m.gguf";
  model.budget_bytes = 28 * k_gib;
  model.planned_bytes = 5 * k_gib;
  model.place.file_system = "ext4";
  model.place.free_bytes = 100 * k_gib;
  model.drive.name = "nvme0n1";
  model.drive.is_rotational = false;
  model.drive_rate = 6e9;
  model.drive_profile_age_seconds = 1000;
  return facts;
}

Severity worst(const std::vector<Finding>& findings) {
  Severity result = Severity::ok;
  for (const Finding& finding : findings) result = std::max(result, finding.severity);
  return result;
}

/// The worst finding of a topic.
Finding find(const DoctorFacts& facts, const std::string& topic) {
  Finding result{Severity::ok, "none", "", ""};
  for (const Finding& finding : judge(facts)) {
    if (finding.topic == topic && (result.topic == "none" || finding.severity > result.severity))
      result = finding;
  }
  return result;
}

/// Changes the good facts and expects one finding with a cure.
template <typename Change>
void expect(Severity severity, const std::string& topic, const std::string& part, Change&& change) {
  DoctorFacts facts = good();
  change(facts);
  const Finding finding = find(facts, topic);
  EXPECT_EQ(finding.severity, severity) << topic << ": " << finding.text;
  EXPECT_NE((finding.text + "; " + finding.cure).find(part), std::string::npos)
      << finding.text << "; " << finding.cure;
  if (severity >= Severity::warning) {
    EXPECT_FALSE(finding.cure.empty()) << finding.text;
  }
  EXPECT_EQ(worst(judge(facts)), severity) << "nothing else may be complained about";
}

TEST(Judge, AGoodMachineIsGood) {
  for (const Finding& finding : judge(good())) EXPECT_EQ(finding.severity, Severity::ok) << finding.text;
  DoctorFacts alone = good();
  alone.model.reset();
  for (const Finding& finding : judge(alone)) EXPECT_EQ(finding.severity, Severity::ok) << finding.text;
}

TEST(Judge, NothingKnownIsNothingBad) {
  EXPECT_LE(worst(judge(DoctorFacts{})), Severity::note);
}

TEST(Judge, FilesOfTheModel) {
  expect(Severity::problem, "model", "shard 2 is missing",
         [](DoctorFacts& f) { f.model->damage = "shard 2 is missing"; });
  expect(Severity::problem, "model", "1.00 GiB", [](DoctorFacts& f) { f.model->missing_bytes = k_gib; });
  expect(Severity::problem, "model", "architecture",
         [](DoctorFacts& f) { f.model->unsupported = "architecture x"; });
  expect(Severity::problem, "budget", "too small", [](DoctorFacts& f) { f.model->refusal = "too small"; });
  expect(Severity::note, "budget", "2.00 GiB on the drive",
         [](DoctorFacts& f) { f.model->streamed_bytes = 2 * k_gib; });
}

TEST(Judge, TheDrive) {
  expect(Severity::warning, "file system", "network",
         [](DoctorFacts& f) { f.model->place.file_system = "nfs4"; });
  expect(Severity::warning, "file system", "network",
         [](DoctorFacts& f) { f.model->place.file_system = "fuse.sshfs"; });
  expect(Severity::note, "file system", "user space",
         [](DoctorFacts& f) { f.model->place.file_system = "fuseblk"; });
  expect(Severity::warning, "direct reads", "tmpfs refuses", [](DoctorFacts& f) {
    f.model->is_direct = false;
    f.model->why_not_direct = "tmpfs refuses";
  });
  expect(Severity::note, "free space", "512 MiB",
         [](DoctorFacts& f) { f.model->place.free_bytes = k_gib / 2; });
  expect(Severity::warning, "drive", "120 MB/s", [](DoctorFacts& f) {
    f.model->drive.is_rotational = true;
    f.model->drive_rate = 120e6;
  });
  expect(Severity::ok, "drive", "6.00 GB/s", [](DoctorFacts& f) { f.model->drive.is_rotational = true; });
  DoctorFacts unmeasured = good();
  unmeasured.model->drive.is_rotational = true;
  unmeasured.model->drive_rate.reset();
  EXPECT_EQ(find(unmeasured, "drive").severity, Severity::warning);
}

TEST(Judge, IoUringAndWhyItIsMissing) {
  const auto without = [](const char* why) {
    return [why](DoctorFacts& f) {
      f.has_uring = false;
      f.why_not_uring = why;
    };
  };
  expect(Severity::warning, "io_uring", "seccomp", without("Operation not permitted"));
  expect(Severity::warning, "io_uring", "kernel.io_uring_disabled=0", [&](DoctorFacts& f) {
    without("Operation not permitted")(f);
    f.health.io_uring_disabled = 2;
  });
  expect(Severity::warning, "io_uring", "Linux 5.6", [&](DoctorFacts& f) {
    without("Invalid system call")(f);
    f.health.kernel_major = 4;
    f.health.kernel_minor = 19;
  });
  expect(Severity::warning, "io_uring", "pread", without("this build has no io_uring (SLUICE_URING is OFF)"));
}

TEST(Judge, MemoryAndSwap) {
  expect(Severity::note, "memory", "/docker/x allows 8.00 GiB", [](DoctorFacts& f) {
    f.health.memory.cgroup_limit_bytes = 8 * k_gib;
    f.health.memory.cgroup_path = "/docker/x";
  });
  expect(Severity::note, "memory", "is less: 4.00 GiB", [](DoctorFacts& f) {
    f.health.memory.cgroup_limit_bytes = 8 * k_gib;
    f.health.default_budget = {4 * k_gib, platform::DefaultBudget::Source::available_memory};
  });
  expect(Severity::note, "memory", "follows it: 7.00 GiB", [](DoctorFacts& f) {
    f.health.memory.cgroup_limit_bytes = 8 * k_gib;
    f.health.default_budget = {7 * k_gib, platform::DefaultBudget::Source::control_group};
  });
  expect(Severity::warning, "memory", "cannot be seen",
         [](DoctorFacts& f) { f.health.memory.groups_are_known = false; });
  expect(Severity::note, "memory", "ulimit",
         [](DoctorFacts& f) { f.health.memory.address_space_limit_bytes = k_gib; });
  expect(Severity::note, "memory pressure", "3 %", [](DoctorFacts& f) { f.health.memory_pressure = 3; });
  expect(Severity::warning, "memory pressure", "40 %", [](DoctorFacts& f) { f.health.memory_pressure = 40; });
  expect(Severity::note, "swap", "1.00 GiB in use", [](DoctorFacts& f) {
    f.health.swap_total_bytes = 4 * k_gib;
    f.health.swap_free_bytes = 3 * k_gib;
  });
  expect(Severity::note, "swap", "nothing in use",
         [](DoctorFacts& f) { f.health.swap_total_bytes = f.health.swap_free_bytes = 4 * k_gib; });
  expect(Severity::warning, "swap", "in and out", [](DoctorFacts& f) {
    f.health.swap_total_bytes = 4 * k_gib;
    f.later.n_swapped_in = f.later.n_swapped_out = 7;
  });
  expect(Severity::warning, "huge pages", "madvise", [](DoctorFacts& f) { f.health.huge_pages = "never"; });
}

TEST(Judge, Cores) {
  expect(Severity::note, "cores", "quota of 2.50 cores", [](DoctorFacts& f) {
    f.health.n_usable_cpus = 2;
    f.health.cpu_quota = 2.5;
  });
  expect(Severity::note, "cores", "affinity", [](DoctorFacts& f) { f.health.n_usable_cpus = 4; });
  expect(Severity::warning, "load", "12.0", [](DoctorFacts& f) { f.health.load = 12; });
  expect(Severity::note, "load", "5.0", [](DoctorFacts& f) { f.health.load = 5; });
  expect(Severity::warning, "heat", "slowed down", [](DoctorFacts& f) { f.later.n_throttles = 1; });
  expect(Severity::warning, "heat", "99", [](DoctorFacts& f) { f.health.hottest_celsius = 99; });
  expect(Severity::note, "heat", "5 times",
         [](DoctorFacts& f) { f.health.counters.n_throttles = f.later.n_throttles = 5; });
}

TEST(Judge, LimitsOfTheProcess) {
  expect(Severity::problem, "open files", "ulimit -n", [](DoctorFacts& f) { f.health.max_open_files = 32; });
  expect(Severity::problem, "open files", "464", [](DoctorFacts& f) {
    f.health.max_open_files = 256;
    f.model->n_shards = 200;
  });
  const auto locked = [](int major, int minor) {
    return [major, minor](DoctorFacts& f) {
      f.health.kernel_major = major;
      f.health.kernel_minor = minor;
      f.health.max_locked_bytes = 65536;
    };
  };
  expect(Severity::warning, "locked memory", "64.0 KiB", locked(5, 10));
  DoctorFacts newer = good();
  locked(5, 12)(newer);
  EXPECT_EQ(find(newer, "locked memory").severity, Severity::ok);
  EXPECT_NE(find(newer, "locked memory").text.find("64.0 KiB"), std::string::npos);
}

TEST(Judge, Profiles) {
  expect(Severity::note, "profile", "sluice profile MODEL",
         [](DoctorFacts& f) { f.model->drive_profile_age_seconds.reset(); });
  expect(Severity::note, "profile", "40 days",
         [](DoctorFacts& f) { f.machine_profile_age_seconds = 40 * 86400; });
}

TEST(Examine, AModelOnThisMachineIsLookedAtAndADamagedOneIsAProblem) {
  const test::TempDir folder;
  DoctorOptions options;
  options.sample_ms = 0;
  options.path = test::write_tiny_model(folder.path(), {});
  const auto about_model = [&options] {
    for (const Finding& finding : examine(options)) {
      if (finding.topic == "model") return finding;
    }
    return Finding{};
  };
  EXPECT_EQ(about_model().severity, Severity::ok);
  std::filesystem::resize_file(options.path, std::filesystem::file_size(options.path) - 5000);
  EXPECT_EQ(about_model().severity, Severity::problem);
  std::filesystem::resize_file(options.path, 64);
  EXPECT_EQ(about_model().severity, Severity::problem);
  EXPECT_NE(about_model().text.find("tiny.gguf"), std::string::npos);
  const auto shards = test::write_tiny_shards(folder.path(), {}, 3);
  options.path = shards[0];
  EXPECT_EQ(about_model().severity, Severity::ok);
  std::filesystem::remove(shards[1]);
  EXPECT_EQ(about_model().severity, Severity::problem);
}

}  // namespace
}  // namespace sluice::engine
