// Feeds arbitrary bytes to the reader of references. What it accepts must be as long as it says, and rows
// must be probabilities or refused.
#include <cmath>
#include <memory>
#include <vector>

#include "engine/measure/reference_file.hpp"
#include "input.hpp"
#include "sluice/error.hpp"
#include "support/tiny_gguf.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  using fuzz::require;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    engine::ReferenceFile file(
        std::make_unique<test::MemorySource>("input", std::vector<std::byte>(bytes, bytes + size)));
    require(file.memory_bytes() <= 2 * size, "a reference takes more memory than its file");
    std::vector<double> row(file.n_vocab());
    for (std::uint32_t chunk = 0; chunk < file.n_chunks(); ++chunk) {
      for (const TokenId token : file.tokens(chunk))
        require(token >= 0 && static_cast<std::uint32_t>(token) < file.n_vocab(), "a token is none");
      for (std::uint32_t at = file.first_scored(); at + 1 < file.n_ctx(); ++at) {
        file.read_row(chunk, at, row);
        for (const double value : row) require(std::isfinite(value) && value < 0.01, "no probability");
      }
    }
  } catch (const Error& error) {
    require(error.code() == ErrorCode::invalid_file, "another error than of a damaged file");
  }
  return 0;
}
