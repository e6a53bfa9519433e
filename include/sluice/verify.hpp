#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "sluice/model.hpp"

namespace sluice {

/// What another program computed of a text: the file that llama-perplexity writes with
/// --kl-divergence-base. It holds the text's tokens, in windows, and the log-probabilities of all tokens
/// behind each token of the second half of each window, in 16 bits each. Used by one thread at a time.
class Reference {
 public:
  /// Reads the header and the tokens, and checks the size of the file; log-probabilities are read when they
  /// are compared. Throws Error(io), or Error(invalid_file) for a file that is none, is not whole or has
  /// tokens outside its vocabulary.
  static Reference open(const std::filesystem::path& path);
  Reference(Reference&&) noexcept;
  Reference& operator=(Reference&&) noexcept;
  ~Reference();

  std::uint32_t n_ctx() const noexcept;     ///< Tokens of a window.
  std::uint32_t n_vocab() const noexcept;   ///< Log-probabilities of a row.
  std::uint32_t n_chunks() const noexcept;  ///< Windows.
  /// What this object and a comparison with it hold, for OpenOptions::program_bytes.
  std::uint64_t memory_bytes() const noexcept;

  struct Impl;
  Impl& impl() noexcept { return *impl_; }
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit Reference(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// A place of the text where the model and the reference were compared.
struct VerifyPlace {
  std::uint32_t chunk = 0, position = 0;  ///< From 0; what follows this token is predicted.
  double kl = 0;
  TokenId reference_token = -1, token = -1;  ///< The likeliest by either.
  /// Of reference_token, by the reference and by the model.
  double reference_probability = 0, probability = 0;
};

struct VerifyOptions {
  std::uint32_t max_chunks = 0;  ///< 0: all.
};

struct VerifyResult {
  std::uint32_t n_chunks = 0;
  std::uint64_t n_scored = 0;
  /// Kullback-Leibler divergence of the model from the reference, in nats per token. What the reference
  /// holds to be less likely than exp(-16) is left out, as its file does not say how much less; rounding in
  /// the file can make a divergence slightly negative.
  double mean_kl = 0, median_kl = 0, max_kl = 0;
  double mean_kl_error = 0;  ///< Standard error of the mean.
  /// Where the likeliest token of the model is one of the likeliest of the reference.
  std::uint64_t n_same_top = 0;
  /// Over n_rated tokens of the text: a token that is exp(16) times less likely than the likeliest has no
  /// probability in the file and is left out of both.
  double perplexity = 0, reference_perplexity = 0;
  std::uint64_t n_rated = 0;
  std::optional<VerifyPlace> first_parting;  ///< Where the likeliest tokens differ first; none: nowhere.
  VerifyPlace worst;                         ///< Where the divergence is largest.

  double same_top() const noexcept {
    return n_scored == 0 ? 0 : static_cast<double>(n_same_top) / static_cast<double>(n_scored);
  }
};

/// What verify() refuses before it computes, for OpenOptions::before_loading: throws Error(invalid_argument)
/// when the reference has another vocabulary than the model or a window longer than the context.
void check_verify(const Reference& reference, const ModelInfo& info, const Plan& plan);

/// Computes the reference's tokens, window by window, and compares what follows each. As in the program that
/// wrote it, the first token of each window is replaced by BOS when the model adds one. Throws as
/// check_verify() and Model::step(), and Error(invalid_file) for rows of the reference that are no
/// probabilities.
VerifyResult verify(Model& model, Reference& reference, const VerifyOptions& options = {},
                    const std::function<void(const VerifyResult&)>& on_chunk = {});

}  // namespace sluice
