#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/test_data.hpp"

namespace sluice::test {

/// A folder in the current working directory: the build tree lies on a real file system more often than /tmp,
/// so direct reads have a better chance there.
class WorkDir {
 public:
  WorkDir() {
    std::string pattern = (std::filesystem::current_path() / "sluice-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder here");
    path_ = pattern;
  }
  ~WorkDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  WorkDir(const WorkDir&) = delete;
  WorkDir& operator=(const WorkDir&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  std::vector<std::byte> bytes(n);
  std::uint64_t state = seed * 2 + 1;
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

/// Writes `n` pseudo-random bytes to `path` and returns them.
inline std::vector<std::byte> write_random_file(const std::filesystem::path& path, std::size_t n,
                                                std::uint64_t seed = 1) {
  std::vector<std::byte> bytes = random_bytes(n, seed);
  write_bytes(path, bytes.data(), bytes.size());
  return bytes;
}

}  // namespace sluice::test
