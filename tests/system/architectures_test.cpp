// Goal: for every architecture, the logits of a text do not depend on how it is divided into passes, on other
// texts in them, on threads, on memory, or on what the sequence did before. Method: tiny models, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/model/model_impl.hpp"
#include "model/architecture.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

constexpr std::size_t k_n_tokens = 90;  // More than a page of the KV cache.

std::vector<TokenId> text_of(std::uint32_t seed) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 0; i < k_n_tokens; ++i)
    tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7 + seed) % 256));
  return tokens;
}

Model open(const std::filesystem::path& path, OpenOptions options = {}) {
  options.n_ctx = 128;
  options.max_sequences = 2;
  if (options.n_threads == 0) options.n_threads = 2;
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  return engine::open_model(path, options, hooks);
}

class Text {
 public:
  explicit Text(Model& model) : model_(model), tokens_(text_of(1)) {
    Sequence sequence = model.new_sequence();
    expected_.resize(k_n_tokens);
    step(sequence, 0, k_n_tokens, [&](std::size_t token, std::span<const float> logits) {
      expected_[token].assign(logits.begin(), logits.end());
    });
  }
  /// Lets the sequence, which has `first` tokens, take `n` more, and compares their logits.
  void expect(Model& model, Sequence& sequence, std::size_t first, std::size_t n,
              const std::string& what) const {
    std::size_t n_wrong = 0, n_rows = 0;
    const Text other(model, *this);
    other.step(sequence, first, n, [&](std::size_t token, std::span<const float> logits) {
      ++n_rows;
      n_wrong += std::memcmp(logits.data(), expected_[token].data(), logits.size_bytes()) != 0;
    });
    EXPECT_EQ(n_rows, n) << what;
    EXPECT_EQ(n_wrong, 0u) << what << ", of " << n << " tokens from " << first;
  }
  std::span<const TokenId> tokens() const { return tokens_; }

 private:
  Text(Model& model, const Text& other) : model_(model), tokens_(other.tokens_) {}
  template <typename Receiver>
  void step(Sequence& sequence, std::size_t first, std::size_t n, Receiver receiver) const {
    const StepItem item{&sequence, std::span(tokens_).subspan(first, n), LogitsWanted::all};
    model_.step({&item, 1}, [&](std::size_t, std::size_t row, std::span<const float> logits) {
      receiver(first + row, logits);
    });
  }

  Model& model_;
  std::vector<TokenId> tokens_;
  std::vector<std::vector<float>> expected_;
};

/// The first `n` in one pass.
void expect_token_by_token(const Text& text, Model& model, std::size_t n, const std::string& name) {
  Sequence sequence = model.new_sequence();
  if (n > 0) text.expect(model, sequence, 0, n, name);
  for (std::size_t i = n; i < k_n_tokens; ++i) text.expect(model, sequence, i, 1, name + " token by token");
}

/// Beside another text, whose rows come before its own.
void expect_beside_another(const Text& text, Model& model, const std::string& name) {
  Sequence other = model.new_sequence(), sequence = model.new_sequence();
  const std::vector<TokenId> tokens = text_of(7);
  const StepItem first{&other, std::span(tokens).first(33), LogitsWanted::none};
  const StepItem own{&sequence, text.tokens().first(50), LogitsWanted::none};
  const StepItem both[] = {first, own};
  model.step(both, {});
  text.expect(model, sequence, 50, k_n_tokens - 50, name + " beside another text");
}

void expect_after_going_back(const Text& text, Model& model, const std::string& name) {
  Sequence sequence = model.new_sequence();
  text.expect(model, sequence, 0, k_n_tokens, name + " whole");
  const std::uint32_t reached = sequence.rewind(70);
  ASSERT_LE(reached, 70u) << name;
  text.expect(model, sequence, reached, k_n_tokens - reached, name + " after going back");
  Sequence shared = model.new_sequence();
  const std::uint32_t n_shared = shared.share_prefix(sequence, 40);
  ASSERT_LE(n_shared, 40u) << name;
  text.expect(model, shared, n_shared, k_n_tokens - n_shared, name + " with a shared beginning");
}

TEST(Architectures, BitsDoNotDependOnPassesNeighboursOrMemory) {
  const test::TempDir dir;
  for (const model::Architecture& architecture : model::known_architectures()) {
    const std::string name = architecture.name;
    const auto path = test::write_tiny_model(dir.path(), test::tiny_model_of(name));
    Model model = open(path);
    const Text text(model);
    expect_token_by_token(text, model, 0, name);
    expect_beside_another(text, model, name);
    expect_after_going_back(text, model, name);

    OpenOptions small;
    small.prefill_chunk = 7;
    small.n_threads = 1;
    small.memory_bytes = model.plan().floor_bytes;
    Model streamed = open(path, small);
    Sequence other = streamed.new_sequence();
    text.expect(streamed, other, 0, k_n_tokens, name + " in chunks of 7 with little memory");
  }
}

TEST(Architectures, KeysAndValuesOf8BitsDoNotDependOnPasses) {
  const test::TempDir dir;
  for (const model::Architecture& architecture : model::known_architectures()) {
    const std::string name = architecture.name;
    OpenOptions options;
    options.kv_type = KvType::q8_0;
    Model model = open(test::write_tiny_model(dir.path(), test::tiny_model_of(name)), options);
    const Text text(model);
    expect_token_by_token(text, model, 64, name);
  }
}

}  // namespace
}  // namespace sluice
