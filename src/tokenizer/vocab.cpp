#include "tokenizer/vocab.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.hpp"
#include "base/log.hpp"

namespace sluice::tokenizer {
namespace {

constexpr std::size_t k_max_tokens = 16u << 20;  ///< The largest vocabularies of today have 262,144.

std::size_t hash_text(std::string_view text) noexcept {
  return std::hash<std::string_view>{}(text);
}

}  // namespace

Vocab::Vocab(const gguf::Metadata& metadata) {
  const gguf::StringArray* tokens = metadata.get_strings("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->size() == 0) {
    base::fail(
        ErrorCode::invalid_file,
        "{}: tokenizer.ggml.tokens is missing or empty although tokenizer.ggml.model names a tokenizer; "
        "download the file again or convert the model anew",
        metadata.source_name);
  }
  if (tokens->size() > k_max_tokens) {
    base::fail(ErrorCode::invalid_file, "{}: tokenizer.ggml.tokens has {} entries, the limit is {}",
               metadata.source_name, tokens->size(), k_max_tokens);
  }
  texts_ = *tokens;
  texts_.shrink_to_fit();
  load_kinds(metadata);
  load_scores(metadata);
  build_index(metadata);
}

void Vocab::load_kinds(const gguf::Metadata& metadata) {
  kinds_.assign(size(), TokenKind::normal);
  const auto types = metadata.get_ints("tokenizer.ggml.token_type");
  if (!types) return;
  if (types->size() != size()) {
    base::fail(
        ErrorCode::invalid_file,
        "{}: tokenizer.ggml.token_type has {} entries, expected {} (one per token); the file is damaged or "
        "was converted wrongly",
        metadata.source_name, types->size(), size());
  }
  for (std::size_t i = 0; i < size(); ++i) {
    const std::int64_t type = (*types)[i];
    if (type < 0 || type > static_cast<std::int64_t>(TokenKind::byte)) {
      base::fail(ErrorCode::invalid_file, "{}: tokenizer.ggml.token_type[{}] is {}, expected 0 to 6",
                 metadata.source_name, i, type);
    }
    // 0 is "undefined": some converters leave it where normal was meant.
    if (type != 0) kinds_[i] = static_cast<TokenKind>(type);
  }
}

void Vocab::load_scores(const gguf::Metadata& metadata) {
  auto scores = metadata.get_floats("tokenizer.ggml.scores");
  if (!scores) return;
  if (scores->size() != size()) {
    base::fail(
        ErrorCode::invalid_file,
        "{}: tokenizer.ggml.scores has {} entries, expected {} (one per token); the file is damaged or was "
        "converted wrongly",
        metadata.source_name, scores->size(), size());
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (std::isnan((*scores)[i])) {
      base::fail(ErrorCode::invalid_file, "{}: tokenizer.ggml.scores[{}] is not a number",
                 metadata.source_name, i);
    }
  }
  scores_ = std::move(*scores);
}

void Vocab::build_index(const gguf::Metadata& metadata) {
  slots_.assign(std::bit_ceil(size() + size() / 2 + 1), -1);
  const std::size_t mask = slots_.size() - 1;
  std::size_t n_duplicates = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    const std::string_view piece = texts_[i];
    max_text_bytes_ = std::max(max_text_bytes_, piece.size());
    if (piece.empty()) continue;  // Nothing can be spelled with it.
    std::size_t slot = hash_text(piece) & mask;
    while (slots_[slot] >= 0 && text(slots_[slot]) != piece) slot = (slot + 1) & mask;
    if (slots_[slot] >= 0) {
      ++n_duplicates;
    } else {
      slots_[slot] = static_cast<TokenId>(i);
    }
  }
  if (n_duplicates > 0) {
    base::warn("{}: {} tokens repeat the text of an earlier token and will never be produced from text",
               metadata.source_name, n_duplicates);
  }
}

TokenId Vocab::find(std::string_view piece) const noexcept {
  if (piece.empty() || piece.size() > max_text_bytes_) return -1;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash_text(piece) & mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    if (text(slots_[slot]) == piece) return slots_[slot];
  }
  return -1;
}

TokenId Vocab::find_piece(std::string_view piece) const noexcept {
  const TokenId token = find(piece);
  if (token < 0) return -1;
  const TokenKind token_kind = kind(token);
  return token_kind == TokenKind::normal || token_kind == TokenKind::user_defined ? token : -1;
}

TokenId Vocab::special_id(const gguf::Metadata& metadata, std::string_view key) const {
  const auto id = metadata.get_uint(key);
  if (!id) return -1;
  if (*id >= size()) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected an id below the vocabulary's size {}",
               metadata.source_name, key, *id, size());
  }
  return static_cast<TokenId>(*id);
}

}  // namespace sluice::tokenizer
