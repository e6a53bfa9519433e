#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "sluice/model.hpp"

namespace sluice::test {

/// A file of log-probabilities, built as llama-perplexity does with --kl-divergence-base.
class ReferenceBytes {
 public:
  ReferenceBytes(std::uint32_t n_ctx, std::uint32_t n_vocab, std::uint32_t n_chunks) : n_vocab_(n_vocab) {
    const char magic[] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
    for (const char c : magic) bytes.push_back(static_cast<std::byte>(c));
    for (const std::uint32_t count : {n_ctx, n_vocab, n_chunks}) append(count);
  }

  void add_token(TokenId token) { append(token); }
  void add_row(std::span<const float> logits) {
    const float top = *std::max_element(logits.begin(), logits.end());
    const float lowest = std::max(*std::min_element(logits.begin(), logits.end()), top - 16);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit} - top);
    const float step = (top - lowest) / 65535.0f;
    append(step);
    append(static_cast<float>(lowest - top - std::log(sum)));
    for (const float logit : logits) {
      const bool is_lowest = logit <= lowest || step == 0;
      append(static_cast<std::uint16_t>(is_lowest ? 0 : std::lround((logit - lowest) / step)));
    }
    if (n_vocab_ % 2 == 1) append(std::uint16_t{0});
  }

  std::vector<std::byte> bytes;

 private:
  template <typename T>
  void append(T value) {
    std::byte part[sizeof value];
    std::memcpy(part, &value, sizeof value);
    bytes.insert(bytes.end(), part, part + sizeof value);
  }

  std::uint32_t n_vocab_;
};

/// What the model says of the windows of `n_ctx` tokens that `tokens` begins with.
inline ReferenceBytes make_reference(Model& model, std::span<const TokenId> tokens, std::uint32_t n_ctx,
                                     std::uint32_t n_chunks) {
  ReferenceBytes reference(n_ctx, model.info().n_vocab, n_chunks);
  for (const TokenId token : tokens.first(std::size_t{n_ctx} * n_chunks)) reference.add_token(token);
  const bool adds_bos = model.tokenizer().adds_bos();
  for (std::uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
    std::vector<TokenId> window(tokens.begin() + chunk * n_ctx, tokens.begin() + (chunk + 1) * n_ctx);
    if (adds_bos) window.front() = model.tokenizer().bos();
    Sequence sequence = model.new_sequence();
    const StepItem item{&sequence, window, LogitsWanted::all};
    model.step({&item, 1}, [&](std::size_t, std::size_t token, std::span<const float> logits) {
      if (token >= n_ctx / 2 && token + 1 < n_ctx) reference.add_row(logits);
    });
  }
  return reference;
}

}  // namespace sluice::test
