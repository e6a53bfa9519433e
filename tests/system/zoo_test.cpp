// Goal: every architecture computes what an independent implementation computes. Method: tiny random models
// of each (F32) from the optional test data, with the log-probabilities that llama-perplexity kept of them
// (--kl-divergence-base); the difference is measured as Kullback-Leibler divergence and agreement of the most
// probable token.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "model/architecture.hpp"
#include "sluice/sluice.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

TEST(Zoo, EveryKnownArchitectureAgreesWithThePeer) {
  SLUICE_NEEDS_DATA(folder, "zoo");
  std::size_t n_models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    OpenOptions options;
    options.n_threads = 2;
    options.n_ctx = 256;
    try {
      Model model = Model::open(entry.path(), options);
      Reference reference = Reference::open(std::filesystem::path(entry.path()).replace_extension(".kld"));
      const VerifyResult result = verify(model, reference);
      RecordProperty(entry.path().stem().string(), std::to_string(result.mean_kl));
      EXPECT_GT(result.n_scored, 0u);
      EXPECT_LE(result.mean_kl, 1e-4) << entry.path();
      EXPECT_GE(result.same_top(), 0.995) << entry.path();
      ++n_models;
    } catch (const Error& error) {
      // What this version cannot run says so by the architecture's name, not by anything else.
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      EXPECT_NE(std::string(error.what()).find("cannot be run by this version"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_GE(n_models, model::known_architectures().size());
}

}  // namespace
}  // namespace sluice
