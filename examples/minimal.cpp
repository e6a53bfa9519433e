// The smallest useful program: opens a model under a memory budget, writes a story, prints what it cost.
//   minimal MODEL.gguf
#include <cinttypes>
#include <cstdio>
#include <sluice/sluice.hpp>
#include <string_view>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: minimal MODEL.gguf\n");
    return 2;
  }
  try {
    sluice::OpenOptions options;
    options.memory_bytes = 24u << 20;  // everything: weights, cache, KV and scratch
    options.n_ctx = 512;
    sluice::Model model = sluice::Model::open(argv[1], options);
    sluice::Sequence sequence = model.new_sequence();

    const auto prompt = model.tokenizer().encode("Once upon a time, there was a little fox");
    sluice::GenerateOptions generation;
    generation.max_tokens = 100;
    generation.sampler.seed = 7;
    sluice::generate(model, sequence, prompt, generation, [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      return true;  // false would stop the story here
    });

    const sluice::Stats stats = model.stats();
    std::printf("\n\n%.1f tokens/s, peak %" PRIu64 " of %" PRIu64
                " bytes, %.0f %% of the experts found in memory\n",
                stats.decode_rate(), stats.peak_rss_bytes, stats.budget_bytes, 100 * stats.hit_rate());
    return 0;
  } catch (const sluice::Error& error) {
    std::fprintf(stderr, "%s: %s\n", sluice::error_code_name(error.code()), error.what());
    return 1;
  }
}
