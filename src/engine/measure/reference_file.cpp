#include "engine/measure/reference_file.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"

namespace sluice::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "rows are used as they lie in the file");

constexpr std::string_view k_magic = "_logits_";
constexpr std::size_t k_header_bytes = 20;
constexpr std::uint32_t k_min_ctx = 4;
constexpr std::uint32_t k_max_ctx = 16u << 20;
constexpr std::uint32_t k_max_vocab = 16u << 20;
constexpr std::uint32_t k_max_chunks = 16u << 20;

std::uint32_t number_at(std::span<const std::byte> bytes, std::size_t offset) noexcept {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

std::uint32_t checked_count(const std::string& file, const char* what, std::uint32_t value,
                            std::uint32_t least, std::uint32_t most) {
  if (value < least || value > most) {
    base::fail(ErrorCode::invalid_file,
               "{}: the reference says {} {}, expected {} to {}; the file is damaged, write it again", file,
               value, what, least, most);
  }
  return value;
}

}  // namespace

ReferenceFile::ReferenceFile(std::unique_ptr<gguf::ByteSource> source) : source_(std::move(source)) {
  std::array<std::byte, k_header_bytes> header{};
  const bool is_long_enough = source_->size() >= header.size();
  if (is_long_enough) source_->read(0, header);
  if (!is_long_enough || std::memcmp(header.data(), k_magic.data(), k_magic.size()) != 0) {
    base::fail(ErrorCode::invalid_file,
               "{}: this is no reference: it does not begin with \"{}\"; write one with llama-perplexity -m "
               "MODEL -f TEXT --kl-divergence-base FILE",
               name(), k_magic);
  }
  n_ctx_ = checked_count(name(), "tokens in a window", number_at(header, 8), k_min_ctx, k_max_ctx);
  n_vocab_ = checked_count(name(), "tokens in the vocabulary", number_at(header, 12), 1, k_max_vocab);
  n_chunks_ = checked_count(name(), "windows", number_at(header, 16), 1, k_max_chunks);
  check_size();
  tokens_.resize(std::size_t{n_chunks_} * n_ctx_);
  source_->read(k_header_bytes, std::as_writable_bytes(std::span(tokens_)));
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] >= 0 && static_cast<std::uint32_t>(tokens_[i]) < n_vocab_) continue;
    base::fail(ErrorCode::invalid_file,
               "{}: token {} of the reference, at byte {}, is {}, expected 0 to {}; the file is damaged, "
               "write it again",
               name(), i, k_header_bytes + i * sizeof(TokenId), tokens_[i], n_vocab_ - 1);
  }
  row_.resize(row_bytes());
}

std::uint64_t ReferenceFile::row_bytes() const noexcept {
  return 2 * sizeof(float) + sizeof(std::uint16_t) * base::round_up(n_vocab_, 2);
}

std::uint64_t ReferenceFile::row_offset(std::uint32_t chunk, std::uint32_t position) const noexcept {
  const std::uint64_t row = std::uint64_t{chunk} * n_scored() + (position - first_scored());
  return k_header_bytes + std::uint64_t{n_chunks_} * n_ctx_ * sizeof(TokenId) + row * row_bytes();
}

void ReferenceFile::check_size() const {
  // The limits above keep tokens within 2^50 bytes and the rows of a window within 2^49.
  const std::uint64_t before_rows = k_header_bytes + std::uint64_t{n_chunks_} * n_ctx_ * sizeof(TokenId);
  const auto rows = base::checked_mul(std::uint64_t{n_scored()} * row_bytes(), n_chunks_);
  const auto expected = rows ? base::checked_add(*rows, before_rows) : std::nullopt;
  if (expected && *expected == source_->size()) return;
  base::fail(ErrorCode::invalid_file,
             "{}: the reference has {} bytes, expected {} ({} windows of {} tokens, a vocabulary of {}); {}",
             name(), source_->size(), expected ? std::to_string(*expected) : "more than 2^64", n_chunks_,
             n_ctx_, n_vocab_,
             expected && *expected < source_->size()
                 ? "it is damaged or written by another program, write it again"
                 : "the program that wrote it was stopped, or the copy is not whole");
}

double ReferenceFile::read_row(std::uint32_t chunk, std::uint32_t position, std::span<double> out) {
  SLUICE_CHECK(chunk < n_chunks_ && position >= first_scored() && position + 1 < n_ctx_);
  SLUICE_CHECK(out.size() == n_vocab_);
  const std::uint64_t offset = row_offset(chunk, position);
  source_->read(offset, row_);
  float step = 0, lowest = 0;
  std::memcpy(&step, row_.data(), sizeof step);
  std::memcpy(&lowest, row_.data() + sizeof step, sizeof lowest);
  double sum = 0;
  for (std::uint32_t i = 0; i < n_vocab_; ++i) {
    std::uint16_t steps = 0;
    std::memcpy(&steps, row_.data() + 2 * sizeof(float) + i * sizeof steps, sizeof steps);
    out[i] = double{lowest} + double{step} * steps;
    if (out[i] > k_lowest) sum += std::exp(out[i]);
  }
  // Steps of 16 / 65535 at most change a sum by 0.02 %; what is not told apart may be missing in it.
  const double missing = n_vocab_ * std::exp(k_lowest);
  if (std::isfinite(step) && step >= 0 && sum <= 1.001 && sum >= 0.999 - missing) {
    const bool is_cut = step * 65535 > 15.999f;
    return is_cut ? double{lowest} : -std::numeric_limits<double>::infinity();
  }
  base::fail(ErrorCode::invalid_file,
             "{}: the reference's probabilities behind token {} of window {}, at byte {}, add up to {}, "
             "expected 1; the file is damaged, write it again",
             name(), position, chunk, offset, sum);
}

std::uint64_t ReferenceFile::memory_bytes() const noexcept {
  return tokens_.size() * sizeof(TokenId) + row_.size();
}

}  // namespace sluice::engine
