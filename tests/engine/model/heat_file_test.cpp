// Goal: a heat file is read back as it was written; whatever else lies at its path is ignored with a reason
// and, if it is not ours, left alone; and whatever ends a process, the path holds a whole file. Method: files
// in temporary folders, all prefixes and many changed bytes of one, and children that are killed while they
// write.
#include "engine/model/heat_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const HeatKey k_key{"a model", 0x123456789abcdef0u, 2, 3};

HeatCounts some_counts() {
  return {100, {1, 2, 3, 40, 50, 60}};
}

/// Standard error of `run`.
template <typename Run>
std::string warnings_of(Run&& run) {
  ::testing::internal::CaptureStderr();
  run();
  return ::testing::internal::GetCapturedStderr();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

void write_text(const fs::path& path, const std::string& text) {
  test::write_bytes(path, text.data(), text.size());
}

TEST(HeatFile, IsReadAsItWasWritten) {
  const test::TempDir dir;
  const fs::path path = dir / "new" / "folder" / "heat.json";
  EXPECT_EQ(warnings_of([&] {
              EXPECT_FALSE(load_heat(path, k_key));
              add_heat(path, k_key, some_counts());
            }),
            "");
  const auto counts = load_heat(path, k_key);
  ASSERT_TRUE(counts);
  EXPECT_EQ(counts->n_tokens, 100);
  EXPECT_EQ(counts->uses, some_counts().uses);
  EXPECT_EQ(names_in(path.parent_path()), std::vector<std::string>{"heat.json"});
}

TEST(HeatFile, OldTokensWeighLess) {
  const HeatCounts old{1000, {100, 0, 0, 0, 0, 8}}, run{k_heat_half_life_tokens, {0, 0, 0, 0, 0, 2}};
  const HeatCounts merged = merge_heat(old, run);
  EXPECT_DOUBLE_EQ(merged.n_tokens, 500 + k_heat_half_life_tokens);
  EXPECT_DOUBLE_EQ(merged.uses[0], 50);
  EXPECT_DOUBLE_EQ(merged.uses[5], 6);
}

TEST(HeatFile, OfAnotherModelOrShapeIsNotUsed) {
  const std::string text = format_heat(k_key, some_counts());
  EXPECT_TRUE(parse_heat(text, k_key).counts);
  HeatKey other = k_key;
  other.fingerprint ^= 1;
  EXPECT_THAT(parse_heat(text, other).why_not, HasSubstr("another model"));
  for (const auto& [layers, experts] : {std::pair{1u, 3u}, {3u, 3u}, {2u, 2u}, {2u, 4u}, {3u, 2u}}) {
    HeatKey shape = k_key;
    shape.n_layers = layers;
    shape.n_experts = experts;
    EXPECT_FALSE(parse_heat(text, shape).counts) << layers << " " << experts;
  }
  std::string newer = text;
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 2");
  EXPECT_THAT(parse_heat(newer, k_key).why_not, HasSubstr("version 2"));
}

TEST(HeatFile, DamageIsFoundOrHarmless) {
  const std::string text = format_heat(k_key, some_counts());
  for (std::size_t n = 0; n + 1 < text.size(); ++n)
    EXPECT_FALSE(parse_heat(text.substr(0, n), k_key).counts) << n;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char byte : {'\0', ' ', '"', '0', '9', '-', ',', '[', ']', '{', '}', '\\', '\xff'}) {
      std::string changed = text;
      changed[i] = byte;
      const ParsedHeat parsed = parse_heat(changed, k_key);
      if (parsed.counts) {
        EXPECT_EQ(parsed.counts->uses.size(), 6u);
        EXPECT_GT(parsed.counts->n_tokens, 0);
      } else {
        EXPECT_NE(parsed.why_not, "");
      }
    }
  }
}

TEST(HeatFile, WhatCannotBeUsedIsOneWarningWithPathAndReason) {
  const test::TempDir dir;
  const auto expect_warning = [&](const fs::path& path, const std::string& reason) {
    const std::string text = warnings_of([&] { EXPECT_FALSE(load_heat(path, k_key)); });
    EXPECT_THAT(text, HasSubstr("sluice: warning: the heat file " + path.string() + " is not used: "));
    EXPECT_THAT(text, HasSubstr(reason));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  };
  const std::string text = format_heat(k_key, some_counts());
  write_text(dir / "cut", text.substr(0, text.size() / 2));
  expect_warning(dir / "cut", "byte ");
  write_text(dir / "large", text + std::string(k_max_heat_bytes, ' '));
  expect_warning(dir / "large", "larger than");
  write_text(dir / "notes", "milk, bread");
  expect_warning(dir / "notes", "no heat file");
  expect_warning(dir.path(), "not a regular file");
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_warning(dir / "pipe", "not a regular file");
}

TEST(HeatFile, WhatIsNoHeatFileIsLeftAlone) {
  const test::TempDir dir;
  write_text(dir / "notes", "milk, bread");
  EXPECT_THAT(warnings_of([&] { add_heat(dir / "notes", k_key, some_counts()); }),
              HasSubstr("left as it is"));
  EXPECT_EQ(test::read_text(dir / "notes"), "milk, bread");
  // A damaged heat file is ours and is replaced; so is an empty one.
  write_text(dir / "cut", format_heat(k_key, some_counts()).substr(0, 60));
  write_text(dir / "empty", "");
  for (const char* name : {"cut", "empty"}) {
    add_heat(dir / name, k_key, some_counts());
    EXPECT_TRUE(load_heat(dir / name, k_key)) << name;
  }
}

TEST(HeatFile, AFolderThatCannotBeWrittenIsOneWarning) {
  const test::TempDir dir;
  write_text(dir / "file", "");
  // Neither root nor a missing permission can make a file a folder.
  const std::string text = warnings_of([&] { add_heat(dir / "file" / "heat.json", k_key, some_counts()); });
  EXPECT_THAT(text, HasSubstr("is not written: "));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  if (geteuid() == 0) return;
  const fs::path closed = dir / "closed";
  fs::create_directory(closed);
  fs::permissions(closed, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(warnings_of([&] { add_heat(closed / "heat.json", k_key, some_counts()); }),
              HasSubstr("is not written"));
  fs::permissions(closed, fs::perms::owner_all);
}

TEST(HeatFile, AFullDiskLeavesTheOldFileAndNothingElse) {
  const test::TempDir dir;
  const fs::path path = dir / "heat.json";
  add_heat(path, k_key, some_counts());
  const std::string before = test::read_text(path);
  // The limit on file sizes stands for the full disk; a child, because it cannot be raised again.
  const pid_t child = fork();
  if (child == 0) {
    const struct rlimit limit = {16, 16};
    setrlimit(RLIMIT_FSIZE, &limit);
    close(STDERR_FILENO);
    add_heat(path, k_key, {200, {9, 9, 9, 9, 9, 9}});
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(test::read_text(path), before);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"heat.json"});
}

TEST(HeatFile, AKilledWriterLeavesAtMostATemporaryFileThatTheNextTakesOver) {
  const test::TempDir dir;
  const fs::path path = dir / "heat.json";
  for (int i = 1; i <= 20; ++i) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      for (;;) {
        add_heat(path, k_key, some_counts());
        if (write(ends[1], "", 1) != 1) _exit(1);
      }
    }
    // It saves on and on; after a different number of times each round it dies wherever it is.
    char byte;
    for (int n = 0; n < i; ++n) ASSERT_EQ(read(ends[0], &byte, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ends[0]);
    close(ends[1]);
    for (const std::string& name : names_in(dir.path()))
      EXPECT_TRUE(name == "heat.json" || name == "heat.json.tmp");
    EXPECT_EQ(warnings_of([&] { EXPECT_TRUE(load_heat(path, k_key)); }), "");
  }
  write_text(dir / "heat.json.tmp",
             "what a killed process left, longer than what is written over it " + std::string(500, 'x'));
  add_heat(path, k_key, some_counts());
  EXPECT_TRUE(load_heat(path, k_key));
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"heat.json"});
}

TEST(HeatFile, TwoWritersDoNotMix) {
  const test::TempDir dir;
  const fs::path path = dir / "heat.json";
  const int other = open((path.string() + ".tmp").c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_GE(other, 0);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  EXPECT_THAT(warnings_of([&] { add_heat(path, k_key, some_counts()); }),
              HasSubstr("another process is writing it"));
  EXPECT_FALSE(fs::exists(path)) << "the other one is still writing";
  close(other);
  add_heat(path, k_key, some_counts());
  EXPECT_TRUE(load_heat(path, k_key));
}

TEST(HeatFile, NothingIsLostWhenManyRunsEndTogether) {
  const test::TempDir dir;
  const fs::path path = dir / "heat.json";
  constexpr int k_n_runs = 8, k_n_saves = 5;
  std::vector<pid_t> children;
  for (int i = 0; i < k_n_runs; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    // So few tokens that nothing ages by as much as one use.
    for (int n = 0; n < k_n_saves; ++n) add_heat(path, k_key, {0.001, {100, 100, 100, 100, 100, 100}});
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  const auto counts = load_heat(path, k_key);
  ASSERT_TRUE(counts);
  for (const double uses : counts->uses) EXPECT_NEAR(uses, 100 * k_n_runs * k_n_saves, k_n_runs * k_n_saves);
}

TEST(HeatFile, NamesWithOddCharactersAreHarmless) {
  HeatKey key = k_key;
  key.model = "a \"quoted\\\" \n name" + std::string(1000, 'x');
  EXPECT_TRUE(parse_heat(format_heat(key, some_counts()), key).counts);
}

}  // namespace
}  // namespace sluice::engine
