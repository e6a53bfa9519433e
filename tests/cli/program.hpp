#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

extern char** environ;

namespace sluice::test {

inline const std::string k_program = SLUICE_PROGRAM;

/// How a program ended.
struct Outcome {
  int status = -1;  ///< Exit status, or 1000 + the signal that ended it.
  std::string out;
  std::string err;
};

/// A program that is running, with standard output on a pipe and standard error in a file.
class Process {
 public:
  struct Options {
    std::string input;          ///< Given as a file on standard input.
    int input_fd = -1;          ///< Instead of `input`.
    int error_fd = -1;          ///< Standard error, instead of a file.
    bool close_output = false;  ///< Started without standard output.
    std::string output_path;    ///< Instead of the pipe.
    bool small_output = false;  ///< The pipe holds a page and never blocks the program.
    std::map<std::string, std::string> environment{};  ///< Added to the test's own.
  };

  Process(const std::vector<std::string>& words, const Options& options) {
    write_bytes(folder_ / "in", options.input.data(), options.input.size());
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    output_ = ends[0];
    if (options.small_output) {
      fcntl(ends[1], F_SETPIPE_SZ, 4096);
      fcntl(ends[1], F_SETFL, O_NONBLOCK);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (options.input_fd >= 0) {
      posix_spawn_file_actions_adddup2(&actions, options.input_fd, 0);
    } else {
      posix_spawn_file_actions_addopen(&actions, 0, (folder_ / "in").c_str(), O_RDONLY, 0);
    }
    if (options.close_output) {
      posix_spawn_file_actions_addclose(&actions, 1);
    } else if (!options.output_path.empty()) {
      posix_spawn_file_actions_addopen(&actions, 1, options.output_path.c_str(), O_WRONLY, 0);
    } else {
      posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    }
    if (options.error_fd >= 0) {
      posix_spawn_file_actions_adddup2(&actions, options.error_fd, 2);
    } else {
      posix_spawn_file_actions_addopen(&actions, 2, (folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0600);
    }
    std::vector<std::string> variables;
    // Neither the user's cache folder nor what another run left there may matter.
    std::map<std::string, std::string> environment = options.environment;
    environment.try_emplace("XDG_CACHE_HOME", (folder_ / "cache").string());
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      if (!environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
    }
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    // What a caller in the background ignores is no part of the test.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&defaults, number);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    std::vector<std::string> owned = words;
    std::vector<char*> argv = pointers(owned), env = pointers(variables);
    const int error =
        posix_spawn(&pid_, words.front().c_str(), &actions, &attributes, argv.data(), env.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0) throw std::runtime_error("cannot start " + words.front());
  }

  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close_output();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Reads until at least `bytes` have come in all, or the output ended.
  const std::string& read_output(std::size_t bytes) {
    std::array<char, 4096> block;
    while (out_.size() < bytes) {
      const ssize_t n = read(output_, block.data(), std::min(block.size(), bytes - out_.size()));
      if (n <= 0) break;
      out_.append(block.data(), static_cast<std::size_t>(n));
    }
    return out_;
  }

  /// Goes away as a reader.
  void close_output() {
    if (output_ >= 0) close(output_);
    output_ = -1;
  }

  pid_t pid() const noexcept { return pid_; }
  void send(int signal) const { kill(pid_, signal); }
  std::string errors() const {
    return std::filesystem::exists(folder_ / "err") ? read_text(folder_ / "err") : std::string();
  }

  bool has_ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }

  Outcome wait() {
    if (output_ >= 0) read_output(std::string::npos);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), out_, errors()};
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> result;
    for (std::string& word : words) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  }

  TempDir folder_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::string out_;
};

/// Runs the program under test to its end.
inline Outcome sluice(std::vector<std::string> arguments, const Process::Options& options = {}) {
  arguments.insert(arguments.begin(), k_program);
  return Process(arguments, options).wait();
}

inline std::vector<std::string> with_program(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), k_program);
  return arguments;
}

}  // namespace sluice::test
