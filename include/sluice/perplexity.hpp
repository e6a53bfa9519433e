#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "sluice/model.hpp"

namespace sluice {

struct PerplexityOptions {
  std::uint32_t n_ctx = 512;     ///< Tokens per window.
  std::uint32_t max_chunks = 0;  ///< 0: all.
};

struct PerplexityResult {
  double perplexity = 0;
  double mean_nll = 0;   ///< Nats per scored token.
  double std_error = 0;  ///< Of the perplexity.
  std::uint64_t n_scored = 0;
  std::uint32_t n_chunks = 0;
};

/// What perplexity() refuses of a text's length: throws Error(invalid_argument). For
/// OpenOptions::before_loading.
void check_perplexity(std::size_t n_tokens, const PerplexityOptions& options, const Plan& plan);

/// Perplexity over consecutive windows of n_ctx tokens; the second half of each window is scored, and the
/// first token of each window is replaced by BOS when the model adds one (the convention of llama.cpp's tool,
/// so that numbers can be compared). Throws Error(invalid_argument) when the text is shorter than two
/// windows.
PerplexityResult perplexity(Model& model, std::span<const TokenId> tokens, const PerplexityOptions& options,
                            const std::function<void(const PerplexityResult&)>& on_chunk = {});

}  // namespace sluice
