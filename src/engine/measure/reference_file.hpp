#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gguf/byte_source.hpp"
#include "sluice/tokenizer.hpp"

namespace sluice::engine {

/// Log-probabilities as llama-perplexity keeps them with --kl-divergence-base. All numbers are little-endian:
/// "_logits_", u32 n_ctx, n_vocab, n_chunks; i32 tokens [n_chunks, n_ctx]; then for each window a row behind
/// each of its tokens from n_ctx / 2 to n_ctx - 2. A row is f32 step, f32 lowest, u16 steps [n_vocab] (one
/// more when that is odd): a log-probability is lowest + step * steps. `lowest` stands for everything that is
/// less likely than the likeliest token by a factor of exp(16).
class ReferenceFile {
 public:
  /// Reads header and tokens: never more memory than the file is long. Throws Error(invalid_file).
  explicit ReferenceFile(std::unique_ptr<gguf::ByteSource> source);

  const std::string& name() const noexcept { return source_->name(); }
  std::uint32_t n_ctx() const noexcept { return n_ctx_; }
  std::uint32_t n_vocab() const noexcept { return n_vocab_; }
  std::uint32_t n_chunks() const noexcept { return n_chunks_; }
  std::span<const TokenId> tokens(std::uint32_t chunk) const noexcept {
    return std::span(tokens_).subspan(std::size_t{chunk} * n_ctx_, n_ctx_);
  }
  /// Position of the token whose successor the first row of a window predicts.
  std::uint32_t first_scored() const noexcept { return n_ctx_ / 2; }
  /// Rows of a window.
  std::uint32_t n_scored() const noexcept { return n_ctx_ - 1 - first_scored(); }

  /// The row behind the token at `position` of a window, from first_scored() to n_ctx() - 2: natural
  /// logarithms, [n_vocab]. Returns the one that stands for all that are less likely, or minus infinity where
  /// there are none. Throws Error(invalid_file) when they are none of probabilities.
  double read_row(std::uint32_t chunk, std::uint32_t position, std::span<double> log_probabilities);
  /// Less likely tokens than that are not told apart.
  static constexpr double k_lowest = -16;

  std::uint64_t memory_bytes() const noexcept;

 private:
  void check_size() const;
  std::uint64_t row_bytes() const noexcept;
  std::uint64_t row_offset(std::uint32_t chunk, std::uint32_t position) const noexcept;

  std::unique_ptr<gguf::ByteSource> source_;
  std::uint32_t n_ctx_ = 0, n_vocab_ = 0, n_chunks_ = 0;
  std::vector<TokenId> tokens_;
  std::vector<std::byte> row_;
};

}  // namespace sluice::engine
