#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::test {

/// A file below the optional test-data folder (environment variable SLUICE_TEST_DATA), or an empty path when
/// the folder is not set or lacks it: such a test skips, saying so.
std::filesystem::path test_data(const std::string& relative);

/// The built-in models that every checkout has.
std::filesystem::path builtin_model(const std::string& file_name);
/// The folder of inputs that a fuzz target starts from.
std::filesystem::path fuzz_seeds(const std::string& target);

/// Figures of another program that every checkout has, below tests/system/golden.
std::filesystem::path golden_file(const std::string& file_name);

std::string read_text(const std::filesystem::path& path);
std::vector<std::byte> read_bytes(const std::filesystem::path& path);
void write_bytes(const std::filesystem::path& path, const void* data, std::size_t bytes);

}  // namespace sluice::test

/// Ends a test as skipped when extra data is not there.
#define SLUICE_NEEDS_DATA(variable, relative)                                 \
  const std::filesystem::path variable = ::sluice::test::test_data(relative); \
  if (variable.empty())                                                       \
  GTEST_SKIP() << "needs " << (relative) << " below SLUICE_TEST_DATA (see CONTRIBUTING.md)"
