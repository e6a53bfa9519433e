// Uses the installed library as a stranger would: nothing but the public headers. Checks that the package is
// the one that was asked for and that an exception crosses the library's border, then writes the same story
// resident and streamed.
#include <cstdio>
#include <sluice/sluice.hpp>
#include <string>
#include <vector>

namespace {

std::vector<sluice::TokenId> story(const char* path, std::uint64_t memory_bytes, bool* resident) {
  sluice::OpenOptions options;
  options.memory_bytes = memory_bytes;
  options.n_ctx = 128;
  sluice::Model model = sluice::Model::open(path, options);
  *resident = model.plan().fully_resident();
  sluice::Sequence sequence = model.new_sequence();
  sluice::GenerateOptions generation;
  generation.sampler.temperature = 0;
  generation.max_tokens = 16;
  return sluice::generate(model, sequence, model.tokenizer().encode("Once upon a time"), generation).tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (std::string(sluice::version()) != PACKAGE_VERSION) {
    std::printf("library %s, package %s\n", sluice::version(), PACKAGE_VERSION);
    return 1;
  }
  try {
    sluice::Model::open("/no/such/model.gguf");
    return 1;
  } catch (const sluice::Error& error) {
    if (error.code() != sluice::ErrorCode::io) return 1;
  }
  bool resident = false;
  bool streamed_resident = true;
  const auto expected = story(argv[1], 256u << 20, &resident);
  const auto streamed = story(argv[1], 24u << 20, &streamed_resident);
  std::printf("sluice %s: %zu tokens, resident %d and streamed %d\n", sluice::version(), expected.size(),
              resident, !streamed_resident);
  return resident && !streamed_resident && !expected.empty() && expected == streamed ? 0 : 1;
}
