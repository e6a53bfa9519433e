#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gguf/metadata.hpp"
#include "tokenizer/tokenizer.hpp"

namespace sluice::tokenizer {

/// The pieces of a vocabulary with their kinds and scores, and the way back from text to id. Costs the text
/// and about 13 bytes per piece (17 with scores). Immutable after construction.
class Vocab {
 public:
  /// Reads tokenizer.ggml.tokens, .token_type and .scores. Throws Error(invalid_file) when they disagree.
  /// Marks of chat formats become control tokens whatever the file says, with one warning; special ids that
  /// are none of this vocabulary are warned of, one by one.
  explicit Vocab(const gguf::Metadata& metadata);

  std::size_t size() const noexcept { return texts_.size(); }
  bool contains(TokenId token) const noexcept {
    return token >= 0 && static_cast<std::size_t>(token) < texts_.size();
  }
  std::string_view text(TokenId token) const noexcept { return texts_[static_cast<std::size_t>(token)]; }
  TokenKind kind(TokenId token) const noexcept { return kinds_[static_cast<std::size_t>(token)]; }
  bool has_scores() const noexcept { return !scores_.empty(); }
  /// 0 when the file has no scores.
  float score(TokenId token) const noexcept {
    return scores_.empty() ? 0.0f : scores_[static_cast<std::size_t>(token)];
  }
  std::size_t max_text_bytes() const noexcept { return max_text_bytes_; }

  /// The id spelled exactly so, whatever its kind, or -1. The lowest id wins when a text occurs twice.
  TokenId find(std::string_view text) const noexcept;
  /// Same, but only pieces that merging may produce: text of a user must never turn into a control token.
  TokenId find_piece(std::string_view text) const noexcept;

  /// A special id of the metadata, or -1 when the key is missing or its value is no id of this vocabulary.
  TokenId special_id(const gguf::Metadata& metadata, std::string_view key) const noexcept;

 private:
  void load_kinds(const gguf::Metadata& metadata);
  void load_scores(const gguf::Metadata& metadata);
  void build_index(const gguf::Metadata& metadata);
  void warn_about_ids(const gguf::Metadata& metadata) const;
  void correct_marks(const gguf::Metadata& metadata);

  gguf::StringArray texts_;
  std::vector<TokenKind> kinds_;
  std::vector<float> scores_;
  std::vector<TokenId> slots_;  ///< Open addressing, power of two, -1 is empty.
  std::size_t max_text_bytes_ = 0;
};

}  // namespace sluice::tokenizer
