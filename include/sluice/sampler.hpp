#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "sluice/tokenizer.hpp"

namespace sluice {

/// Limit of SamplerOptions::repeat_window: longer than any context, so it only refuses nonsense.
inline constexpr std::uint32_t k_max_repeat_window = 1u << 20;

struct SamplerOptions {
  float temperature = 0.8f;  ///< 0: greedy.
  std::uint32_t top_k = 40;  ///< 0: off.
  float top_p = 0.95f;       ///< 1: off.
  float min_p = 0.05f;       ///< 0: off.
  float repeat_penalty =
      1.0f;  ///< 1: off (Keskar et al. 2019: positive logits divided, negative multiplied).
  std::uint32_t repeat_window = 64;  ///< Last tokens the penalty looks at.
  std::uint64_t seed = 0;            ///< 0: drawn from the system.
};

/// Chooses tokens from logits: repeat penalty, then top-k, top-p, min-p, temperature, then one draw.
/// The same seed, options and logits give the same tokens on every machine. Not thread-safe.
class Sampler {
 public:
  /// Throws Error(invalid_argument) naming the option that is out of range.
  explicit Sampler(const SamplerOptions& options);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  /// Picks the next token. NaN logits throw Error(internal).
  TokenId sample(std::span<const float> logits);
  /// Tells the penalty about a token that is now part of the text (prompt or answer).
  void accept(TokenId token);
  /// Forgets those tokens; the random numbers go on.
  void forget();
  std::uint64_t seed() const noexcept;  ///< The seed in use, so that a run can be repeated.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
