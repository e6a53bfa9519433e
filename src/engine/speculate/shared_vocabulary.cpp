#include "engine/speculate/shared_vocabulary.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.hpp"

namespace sluice::engine {

std::uint32_t n_shared_tokens(const ModelInfo& model, const Tokenizer& own, const ModelInfo& draft,
                              const Tokenizer& other) {
  const auto refuse = [&](const std::string& what) {
    base::fail(
        ErrorCode::invalid_argument,
        "{} cannot be the draft of {}: their vocabularies differ ({}); a draft must be of the same family",
        draft.path, model.path, what);
  };
  if (own.vocab_size() == 0 || other.vocab_size() == 0) {
    // Nothing says what the ids mean, so the least that can be asked is that there are as many.
    if (own.vocab_size() != other.vocab_size())
      refuse(fmt::format("{} and {} tokens", other.vocab_size(), own.vocab_size()));
    if (model.n_vocab != draft.n_vocab)
      refuse(fmt::format("{} and {} token ids", draft.n_vocab, model.n_vocab));
    return model.n_vocab;
  }
  const std::size_t n_shared = std::min(own.vocab_size(), other.vocab_size());
  for (std::size_t i = 0; i < n_shared; ++i) {
    const auto token = static_cast<TokenId>(i);
    if (own.token_text(token) != other.token_text(token))
      refuse(fmt::format("token {} is '{}' and '{}'", i, other.token_text(token), own.token_text(token)));
  }
  if (own.bos() != other.bos())
    refuse(fmt::format("texts begin with token {} and {}", other.bos(), own.bos()));
  return static_cast<std::uint32_t>(n_shared);
}

}  // namespace sluice::engine
