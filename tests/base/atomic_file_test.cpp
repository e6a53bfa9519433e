// Goal: at the name of an atomic file there is always a whole file, whatever other writers and killed ones
// do, and a writer touches nothing that is not its own. Method: files in temporary folders; locks held and
// names changed by the test in the place of others.
#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "support/resource_limit.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace sluice::base {
namespace {

namespace fs = std::filesystem;

constexpr AtomicFile::Options k_take_over{".partial", 0600, true, 0};
constexpr AtomicFile::Options k_new_only{".partial", 0600, false, 0};

void write_text(const fs::path& path, const std::string& text) {
  test::write_bytes(path, text.data(), text.size());
}

TEST(AtomicFile, HasItsNameOnlyWhenItIsWhole) {
  const test::TempDir dir;
  {
    AtomicFile file;
    ASSERT_EQ(file.open(dir / "a", k_new_only), 0);
    ASSERT_EQ(file.append("one "), 0);
    EXPECT_FALSE(fs::exists(dir / "a"));
    EXPECT_EQ(file.partial(), dir / "a.partial");
    ASSERT_EQ(file.append("two"), 0);
    ASSERT_EQ(file.commit(false), 0);
  }
  EXPECT_EQ(test::read_text(dir / "a"), "one two");
  EXPECT_FALSE(fs::exists(dir / "a.partial"));
  {
    AtomicFile file;
    ASSERT_EQ(file.open(dir / "a", k_new_only), 0);
    ASSERT_EQ(file.append("given up"), 0);
  }
  EXPECT_EQ(test::read_text(dir / "a"), "one two");
  EXPECT_FALSE(fs::exists(dir / "a.partial"));
}

TEST(AtomicFile, ReplacesOnlyWhenItMay) {
  const test::TempDir dir;
  write_text(dir / "a", "old");
  AtomicFile first;
  ASSERT_EQ(first.open(dir / "a", k_take_over), 0);
  ASSERT_EQ(first.append("new"), 0);
  EXPECT_EQ(first.commit(false), EEXIST);
  EXPECT_EQ(test::read_text(dir / "a"), "old");
  EXPECT_EQ(first.commit(true), 0);
  EXPECT_EQ(test::read_text(dir / "a"), "new");
}

TEST(AtomicFile, ASecondWriterNeitherSharesNorRemovesTheFile) {
  const test::TempDir dir;
  AtomicFile first;
  ASSERT_EQ(first.open(dir / "a", k_take_over), 0);
  ASSERT_EQ(first.append("first"), 0);
  {
    AtomicFile second;
    EXPECT_EQ(second.open(dir / "a", k_take_over), EBUSY);
    AtomicFile third;
    EXPECT_EQ(third.open(dir / "a", k_new_only), EEXIST);
  }
  EXPECT_EQ(test::read_text(dir / "a.partial"), "first");
  ASSERT_EQ(first.commit(true), 0);
  EXPECT_EQ(test::read_text(dir / "a"), "first");
}

TEST(AtomicFile, WhatAKilledWriterLeftIsTakenOverOrRefused) {
  const test::TempDir dir;
  write_text(dir / "a.partial", "longer than what comes");
  AtomicFile careful;
  EXPECT_EQ(careful.open(dir / "a", k_new_only), EEXIST);
  careful.discard();
  EXPECT_EQ(test::read_text(dir / "a.partial"), "longer than what comes");
  AtomicFile file;
  ASSERT_EQ(file.open(dir / "a", k_take_over), 0);
  ASSERT_EQ(file.append("short"), 0);
  ASSERT_EQ(file.commit(true), 0);
  EXPECT_EQ(test::read_text(dir / "a"), "short");
}

TEST(AtomicFile, PublishesAndRemovesNothingThatIsNotItsOwn) {
  const test::TempDir dir;
  for (const bool commits : {true, false}) {
    AtomicFile file;
    ASSERT_EQ(file.open(dir / "a", k_take_over), 0);
    ASSERT_EQ(file.append("mine"), 0);
    // Somebody who knows no locks puts a file of his own there.
    fs::remove(dir / "a.partial");
    write_text(dir / "a.partial", "not mine");
    if (commits) {
      EXPECT_EQ(file.commit(true), ESTALE);
    }
    file.discard();
    EXPECT_EQ(test::read_text(dir / "a.partial"), "not mine");
    EXPECT_FALSE(fs::exists(dir / "a"));
  }
}

TEST(AtomicFile, IsNeverALinkAFolderOrAPipe) {
  const test::TempDir dir;
  write_text(dir / "victim", "whole");
  fs::create_symlink(dir / "victim", dir / "link.partial");
  fs::create_directory(dir / "folder.partial");
  ASSERT_EQ(mkfifo((dir / "pipe.partial").c_str(), 0600), 0);
  for (const char* name : {"link", "folder", "pipe"}) {
    AtomicFile file;
    EXPECT_EQ(file.open(dir / name, k_take_over), EINVAL) << name;
  }
  EXPECT_EQ(test::read_text(dir / "victim"), "whole");
}

TEST(AtomicFile, StopsBelowTheLimitOnFileSizes) {
  const test::TempDir dir;
  AtomicFile file;
  ASSERT_EQ(file.open(dir / "a", k_new_only), 0);
  const test::ResourceLimit limit(RLIMIT_FSIZE, 10);
  EXPECT_EQ(file_bytes_limit(), 10u);
  EXPECT_EQ(file.append("12345678"), 0);
  EXPECT_EQ(file.append("123"), EFBIG);
  EXPECT_EQ(file.append("12"), 0);
}

// Readers beside many writers see whole files only: each writes its own letter so many times.
TEST(AtomicFile, ManyWritersLeaveOneWholeFile) {
  const test::TempDir dir;
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int n = 0; n < 50; ++n) {
      AtomicFile file;
      if (file.open(dir / "a", {".partial", 0600, true, 60'000'000'000}) != 0) _exit(1);
      const std::string half(5000, static_cast<char>('a' + i));
      if (file.append(half) != 0 || file.append(half) != 0) _exit(2);
      if (n % 5 != 4 && file.commit(true) != 0) _exit(3);
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    const std::string text = test::read_text(dir / "a");
    EXPECT_EQ(text, std::string(10'000, text.at(0)));
  }
  EXPECT_FALSE(fs::exists(dir / "a.partial"));
}

}  // namespace
}  // namespace sluice::base
