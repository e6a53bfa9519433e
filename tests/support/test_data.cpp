#include "support/test_data.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace sluice::test {

std::filesystem::path test_data(const std::string& relative) {
  const char* root = std::getenv("SLUICE_TEST_DATA");
  if (root == nullptr || *root == '\0') return {};
  std::filesystem::path path = std::filesystem::path(root) / relative;
  std::error_code error;
  return std::filesystem::exists(path, error) ? path : std::filesystem::path();
}

std::filesystem::path builtin_model(const std::string& file_name) {
  return std::filesystem::path(SLUICE_SOURCE_DIR) / "models" / file_name;
}

std::filesystem::path golden_file(const std::string& file_name) {
  return std::filesystem::path(SLUICE_SOURCE_DIR) / "tests" / "system" / "golden" / file_name;
}

std::filesystem::path fuzz_seeds(const std::string& target) {
  return std::filesystem::path(SLUICE_SOURCE_DIR) / "fuzz" / "seeds" / target;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::byte> read_bytes(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

void write_bytes(const std::filesystem::path& path, const void* data, std::size_t bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace sluice::test
