#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.hpp"
#include "gguf/metadata.hpp"
#include "tokenizer/special_matcher.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/vocab.hpp"

namespace sluice::tokenizer {

/// What a family does when the file does not say.
struct FamilyDefaults {
  bool adds_bos = false;
  bool forces_bos = false;             ///< Whatever the file says.
  bool has_sentencepiece_ids = false;  ///< BOS 1 and EOS 2, if these are control tokens.
};

/// The part that all families share: the vocabulary, special tokens in the text, BOS and EOS.
class TextTokenizer : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const final;
  std::vector<TokenId> encode_pieces(std::span<const TextPiece> pieces, TokenId previous) const final;
  std::string token_bytes(TokenId token, bool special) const final;
  std::size_t vocab_size() const noexcept final { return vocab_.size(); }
  std::string_view token_text(TokenId token) const final;
  TokenKind token_kind(TokenId token) const final;
  std::string_view model_name() const noexcept final { return model_name_; }
  TokenId find_token(std::string_view text) const noexcept final { return vocab_.find(text); }

 protected:
  TextTokenizer(const gguf::Metadata& metadata, const FamilyDefaults& defaults);

  /// Encodes text without special tokens. `after_special`: it starts the text or follows a special token.
  virtual void encode_plain(std::string_view text, bool after_special, std::vector<TokenId>& out) const = 0;
  /// Appends the bytes that a normal or byte piece stands for.
  virtual void append_piece_bytes(TokenId token, std::string& out) const = 0;

  const Vocab& vocab() const noexcept { return vocab_; }
  TokenId unknown_token() const noexcept { return special_token(SpecialToken::unknown); }

 private:
  bool is_special(TokenId token) const noexcept;
  using FindSpecial = base::FunctionRef<SpecialMatcher::Match(std::size_t from)>;
  void append_tokens(std::string_view text, bool after_special, FindSpecial find,
                     std::vector<TokenId>& out) const;
  void load_special_ids(const gguf::Metadata& metadata, const FamilyDefaults& defaults);
  void load_suppressed(const gguf::Metadata& metadata);

  Vocab vocab_;
  SpecialMatcher specials_;
  std::string model_name_;
  bool strips_after_special_ = false;
};

/// The ids that end a generation: EOS and those of `special` that do, and the well-known end tokens that are
/// control tokens of the vocabulary. Sorted, without repeats.
std::vector<TokenId> find_end_tokens(const Vocab& vocab, TokenId eos, const SpecialIds& special);
/// The token that ends a turn in the well-known chat formats, or -1.
TokenId find_end_of_turn(const Vocab& vocab, TokenId eos);

}  // namespace sluice::tokenizer
