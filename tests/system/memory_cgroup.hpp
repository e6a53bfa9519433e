#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.hpp"
#include "platform/memory.hpp"

namespace sluice::test {

/// A version-1 or version-2 memory cgroup of its own, when this user may make one.
class MemoryCgroup {
 public:
  explicit MemoryCgroup(std::uint64_t limit_bytes) {
    for (const auto& [root, file] : {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                     std::pair{"/sys/fs/cgroup", "memory.max"}}) {
      const std::string folder = std::string(root) + "/sluice-test-" + std::to_string(getpid());
      if (mkdir(folder.c_str(), 0700) != 0) continue;
      std::ofstream limit(folder + "/" + file);
      limit << limit_bytes << std::flush;
      if (limit.good()) {
        folder_ = folder;
        return;
      }
      rmdir(folder.c_str());
    }
  }
  ~MemoryCgroup() {
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;
  const std::string& folder() const { return folder_; }

  /// The program with these arguments, to be run inside. The shell enters the group first, so that everything
  /// the program touches is charged to it.
  std::vector<std::string> command(const std::vector<std::string>& arguments) const {
    std::string line;
    for (const std::string& word : arguments) line += " '" + word + "'";
    return {"/bin/sh", "-c", "echo $$ > " + folder_ + "/cgroup.procs && exec " + k_program + line};
  }

 private:
  std::string folder_;
};

/// A process in a cgroup that takes memory step by step and keeps it until it is told to end. It takes the
/// next step when nearly nothing but that is free: one that never waited would be a test of the scheduler.
/// With `pause_ms` it does not look, but takes a step so often.
class Neighbour {
 public:
  Neighbour(const MemoryCgroup& group, std::uint64_t bytes, std::uint64_t step_bytes, int pause_ms = 0) {
    int done[2], end[2];
    if (pipe(done) != 0 || pipe(end) != 0) throw std::runtime_error("pipe");
    done_ = done[0];
    end_ = end[1];
    pid_ = fork();
    if (pid_ == 0) {
      close(done[0]);
      close(end[1]);
      take(group, bytes, step_bytes, pause_ms, done[1], end[0]);
    }
    close(done[1]);
    close(end[0]);
    if (pid_ < 0) throw std::runtime_error("fork");
  }
  ~Neighbour() {
    leave();
    close(done_);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  /// Waits until it has all of its memory. False when it was killed.
  bool has_all() const {
    char byte = 0;
    return read(done_, &byte, 1) == 1;
  }
  /// Gives its memory back; returns 0, or the signal that killed it.
  int leave() {
    if (pid_ <= 0) return status_;
    close(end_);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    status_ = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    return status_;
  }

 private:
  /// In the group of this process.
  static std::uint64_t free_bytes() {
    const platform::MemoryLimits limits = platform::read_memory_limits();
    const std::uint64_t limit = limits.cgroup_limit_bytes.value_or(0);
    return limit - std::min(limit, limits.cgroup_unreclaimable_bytes);
  }
  [[noreturn]] static void take(const MemoryCgroup& group, std::uint64_t bytes, std::uint64_t step_bytes,
                                int pause_ms, int done, int end) {
    {
      std::ofstream file(group.folder() + "/cgroup.procs");
      file << getpid() << std::flush;
      if (!file.good()) _exit(100);
    }
    constexpr int k_max_waits = 30'000;
    char byte = 0;
    int n_waits = 0;
    for (std::uint64_t taken = 0; taken < bytes; taken += step_bytes) {
      pollfd wait{end, POLLIN, 0};
      if (pause_ms != 0) poll(&wait, 1, pause_ms);
      while (pause_ms == 0 && free_bytes() < 2 * step_bytes) {
        if (++n_waits > k_max_waits) _exit(103);
        poll(&wait, 1, 1);
      }
      void* const data =
          mmap(nullptr, step_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) _exit(101);
      for (std::uint64_t at = 0; at < step_bytes; at += 4096) static_cast<volatile char*>(data)[at] = 1;
    }
    if (write(done, &byte, 1) != 1) _exit(102);
    while (read(end, &byte, 1) < 0 && errno == EINTR) {
    }
    _exit(0);
  }

  pid_t pid_ = -1;
  int done_ = -1, end_ = -1, status_ = 0;
};

}  // namespace sluice::test
