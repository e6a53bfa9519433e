#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

namespace sluice::engine {

/// While it lives, other processes of this user that open a model wait: each then plans with what the one
/// before has left, instead of both planning with the same free memory. Advisory: where no lock can be had,
/// or not in time, it is none, and the looks before each part of memory have to do.
class OpenTurn {
 public:
  static constexpr std::uint64_t k_wait_ns = 10'000'000'000;

  OpenTurn() = default;
  /// Waits at most `wait_ns`, and no longer when `cancel` is raised, for the lock file at `path`, which is
  /// made when it is not there.
  explicit OpenTurn(const std::filesystem::path& path, std::uint64_t wait_ns = k_wait_ns,
                    const std::atomic<bool>* cancel = nullptr);
  ~OpenTurn();
  OpenTurn(OpenTurn&& other) noexcept;
  OpenTurn& operator=(OpenTurn&& other) noexcept;

  bool is_held() const noexcept { return fd_ >= 0; }
  /// Where those wait who share memory with this process: one file for each memory cgroup that has a limit
  /// (`group`, as its path), one for all other processes. In $XDG_RUNTIME_DIR or else the folder for
  /// temporary files.
  static std::filesystem::path place(const std::string& group);

 private:
  int fd_ = -1;
};

}  // namespace sluice::engine
