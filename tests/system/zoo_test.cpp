// Goal: every architecture computes what an independent implementation computes. Method: tiny random models
// of each (F32) from the optional test data, with the log-probabilities that llama-perplexity kept of them
// (--kl-divergence-base); the difference is measured as Kullback-Leibler divergence and agreement of the most
// probable token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/architecture.hpp"
#include "sluice/sluice.hpp"
#include "support/test_data.hpp"

namespace sluice {
namespace {

/// A file of the peer: "_logits_", n_ctx, n_vocab, n_chunks, tokens [n_chunks, n_ctx], then for the second
/// half of each chunk but its last position: scale, lowest log-probability, and 16-bit steps above it.
class PeerLogits {
 public:
  explicit PeerLogits(const std::filesystem::path& path) : bytes_(test::read_bytes(path)) {
    n_ctx = static_cast<std::uint32_t>(number(8));
    n_vocab = static_cast<std::uint32_t>(number(12));
    n_chunks = static_cast<std::uint32_t>(number(16));
    for (std::size_t i = 0; i < std::size_t{n_ctx} * n_chunks; ++i) tokens.push_back(number(20 + 4 * i));
    // The peer begins every chunk with the token that begins a text, in the place of the one that is there.
    for (std::uint32_t chunk = 1; chunk < n_chunks; ++chunk)
      tokens[std::size_t{chunk} * n_ctx] = tokens.front();
  }
  std::uint32_t first() const { return n_ctx / 2; }
  std::uint32_t n_scored() const { return n_ctx - 1 - first(); }
  std::vector<double> log_probabilities(std::uint32_t chunk, std::uint32_t row) const {
    const std::size_t row_bytes = (2 * ((std::size_t{n_vocab} + 1) / 2) + 4) * 2;
    const std::byte* at =
        bytes_.data() + 20 + 4 * tokens.size() + (std::size_t{chunk} * n_scored() + row) * row_bytes;
    float scale_and_lowest[2];
    std::memcpy(scale_and_lowest, at, sizeof scale_and_lowest);
    std::vector<double> result(n_vocab);
    for (std::uint32_t i = 0; i < n_vocab; ++i) {
      std::uint16_t steps = 0;
      std::memcpy(&steps, at + 8 + 2 * i, sizeof steps);
      result[i] = double{scale_and_lowest[0]} * steps + scale_and_lowest[1];
    }
    return result;
  }

  std::uint32_t n_ctx = 0, n_vocab = 0, n_chunks = 0;
  std::vector<TokenId> tokens;

 private:
  std::int32_t number(std::size_t offset) const {
    std::int32_t value = 0;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  std::vector<std::byte> bytes_;
};

struct Difference {
  double kl_sum = 0;
  std::size_t n_same_top = 0, n_rows = 0;

  void add(const std::vector<double>& peer, std::span<const float> logits) {
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - top);
    for (std::size_t i = 0; i < peer.size(); ++i)
      kl_sum += std::exp(peer[i]) * (peer[i] - (logits[i] - top - std::log(sum)));
    const auto peer_top = std::max_element(peer.begin(), peer.end()) - peer.begin();
    n_same_top += std::max_element(logits.begin(), logits.end()) - logits.begin() == peer_top;
    ++n_rows;
  }
};

Difference compare(const std::filesystem::path& model_path, const OpenOptions& options) {
  const PeerLogits peer(std::filesystem::path(model_path).replace_extension(".kld"));
  Model model = Model::open(model_path, options);
  EXPECT_EQ(model.info().n_vocab, peer.n_vocab);
  Difference difference;
  for (std::uint32_t chunk = 0; chunk < peer.n_chunks; ++chunk) {
    Sequence sequence = model.new_sequence();
    const std::span tokens = std::span(peer.tokens).subspan(std::size_t{chunk} * peer.n_ctx, peer.n_ctx);
    const StepItem item{&sequence, tokens, LogitsWanted::all};
    model.step({&item, 1}, [&](std::size_t, std::size_t row, std::span<const float> logits) {
      if (row < peer.first() || row + 1 >= peer.n_ctx) return;
      difference.add(peer.log_probabilities(chunk, static_cast<std::uint32_t>(row) - peer.first()), logits);
    });
  }
  return difference;
}

TEST(Zoo, EveryKnownArchitectureAgreesWithThePeer) {
  SLUICE_NEEDS_DATA(folder, "zoo");
  std::size_t n_models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    OpenOptions options;
    options.n_threads = 2;
    options.n_ctx = 256;
    try {
      const Difference difference = compare(entry.path(), options);
      const double n_rows = static_cast<double>(difference.n_rows);
      RecordProperty(entry.path().stem().string(), std::to_string(difference.kl_sum / n_rows));
      EXPECT_GT(difference.n_rows, 0u);
      EXPECT_LE(difference.kl_sum / n_rows, 1e-4) << entry.path();
      EXPECT_GE(static_cast<double>(difference.n_same_top), 0.995 * n_rows) << entry.path();
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
