#include "tokenizer/vocab.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "gguf/text.hpp"
#include "tokenizer/chat_marks.hpp"
#include "tokenizer/special_tokens.hpp"

namespace sluice::tokenizer {
namespace {

constexpr std::size_t k_max_tokens = 16u << 20;  ///< The largest vocabularies of today have 262,144.

/// A number that is not negative; nothing for other values.
std::optional<std::int64_t> integer_of(const gguf::Value& value) noexcept {
  constexpr auto k_max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (const auto* number = std::get_if<std::uint64_t>(&value.data); number != nullptr && *number <= k_max) {
    return static_cast<std::int64_t>(*number);
  }
  const auto* number = std::get_if<std::int64_t>(&value.data);
  if (number != nullptr && *number >= 0) return *number;
  return std::nullopt;
}

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
  warn_about_ids(metadata);
  correct_marks(metadata);
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
  constexpr std::string_view k_key = "tokenizer.ggml.scores";
  const gguf::Value* value = metadata.find(k_key);
  if (value == nullptr) return;
  std::optional<std::vector<float>> scores;
  const auto* array = std::get_if<gguf::Array>(&value->data);
  if (array != nullptr && gguf::is_integer_type(array->element_type)) {
    const std::vector<std::int64_t> integers = *metadata.get_ints(k_key);
    scores.emplace(integers.begin(), integers.end());
  } else {
    scores = metadata.get_floats(k_key);
  }
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

TokenId Vocab::special_id(const gguf::Metadata& metadata, std::string_view key) const noexcept {
  const gguf::Value* value = metadata.find(key);
  const auto id = value == nullptr ? std::nullopt : integer_of(*value);
  return id && *id < static_cast<std::int64_t>(size()) ? static_cast<TokenId>(*id) : -1;
}

void Vocab::warn_about_ids(const gguf::Metadata& metadata) const {
  // Converters write -1, in whatever type, where a model has no such token.
  for (const gguf::Metadata::Entry& entry : metadata.entries()) {
    if (!entry.key.starts_with("tokenizer.ggml.")) continue;
    if (entry.key.ends_with("_token_id") && special_id(metadata, entry.key) < 0) {
      base::warn("{}: {} is {}, expected an id of the vocabulary (0 to {}); it is taken as absent",
                 metadata.source_name, gguf::printable(entry.key), gguf::describe_value(entry.value),
                 size() - 1);
    }
    if (!entry.key.ends_with("_token_ids") && !entry.key.ends_with("suppress_tokens")) continue;
    const auto* array = std::get_if<gguf::Array>(&entry.value.data);
    const bool is_list = array != nullptr && gguf::is_integer_type(array->element_type);
    const auto ids = is_list ? metadata.get_ints(entry.key) : std::nullopt;
    const auto is_outside = [&](std::int64_t id) {
      return id < 0 || id >= static_cast<std::int64_t>(size());
    };
    if (ids && std::none_of(ids->begin(), ids->end(), is_outside)) continue;
    base::warn("{}: {} is {}, expected a list of ids of the vocabulary (0 to {}); others are ignored",
               metadata.source_name, gguf::printable(entry.key), gguf::describe_value(entry.value),
               size() - 1);
  }
}

void Vocab::correct_marks(const gguf::Metadata& metadata) {
  std::vector<TokenId> corrected;
  const auto correct = [&](TokenId token) {
    TokenKind& token_kind = kinds_[static_cast<std::size_t>(token)];
    if (token_kind != TokenKind::normal && token_kind != TokenKind::user_defined &&
        token_kind != TokenKind::unused) {
      return;
    }
    token_kind = TokenKind::control;
    corrected.push_back(token);
  };
  for (TokenId token = 0; contains(token); ++token) {
    if (is_chat_mark(text(token))) correct(token);
    // Most files have these as plain tokens, so there is nothing to warn of.
    TokenKind& token_kind = kinds_[static_cast<std::size_t>(token)];
    if (token_kind != TokenKind::unknown && is_infill_mark(text(token))) token_kind = TokenKind::control;
  }
  const auto named_id = [&](const char* name) {
    return special_id(metadata, fmt::format("tokenizer.ggml.{}_token_id", name));
  };
  for (const char* name : {"bos", "eos", "eot", "eom"}) {
    const TokenId token = named_id(name);
    if (token >= 0 && looks_like_markup(text(token))) correct(token);
  }
  // The places that SentencePiece gives them.
  if (size() > 2 && text(1) == "<s>" && text(2) == "</s>") {
    if (named_id("bos") < 0) correct(1);
    if (named_id("eos") < 0) correct(2);
  }
  // A file without types says nothing that could be wrong.
  if (corrected.empty() || !metadata.contains("tokenizer.ggml.token_type")) return;
  constexpr std::size_t k_max_named = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(corrected.size(), k_max_named); ++i) {
    names += (i == 0 ? "" : ", ") + gguf::printable(text(corrected[i]));
  }
  if (corrected.size() > k_max_named) names += fmt::format(" and {} more", corrected.size() - k_max_named);
  base::warn(
      "{}: marks of a chat are not control tokens in tokenizer.ggml.token_type ({}); they are taken as such, "
      "so "
      "that turns end and no text can imitate them",
      metadata.source_name, names);
}

}  // namespace sluice::tokenizer
