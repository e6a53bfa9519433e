#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.hpp"
#include "tokenizer/special_tokens.hpp"

namespace sluice::tokenizer {

using TokenId = std::int32_t;

struct TokenizerOptions {
  /// Overrides tokenizer.ggml.pre; empty means what the file says.
  std::string pre_tokenizer;
};

struct EncodeOptions {
  bool add_special = true;  ///< Add BOS/EOS as the model's flags ask; no second BOS when the text spells it.
  bool parse_special = false;  ///< Recognise control tokens written in the text ("<|im_end|>").
};

/// Part of a text that is put together from the markup of a chat format and the words of others.
struct TextPiece {
  std::string_view text;
  /// Control tokens spelled in it are recognised. In other pieces nothing that looks like markup is.
  bool is_markup = false;
};

/// What a token is, as tokenizer.ggml.token_type says.
enum class TokenKind : std::uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

/// Immutable after construction; safe to use from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Text to tokens. Any byte string is accepted: invalid UTF-8 is encoded through byte fallback or as the
  /// replacement the model family uses, never an error. Time is near linear in the text.
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const = 0;
  /// The tokens of the pieces' whole text. `previous` is the token that it follows, or -1 when it begins a
  /// text: then BOS is added as the model's flags ask. EOS never is.
  virtual std::vector<TokenId> encode_pieces(std::span<const TextPiece> pieces, TokenId previous) const = 0;

  /// The bytes a token stands for; control tokens give nothing unless `special`.
  virtual std::string token_bytes(TokenId token, bool special = false) const = 0;
  /// Tokens to text, invalid UTF-8 replaced by U+FFFD. Removes the leading space SentencePiece adds.
  std::string decode(const std::vector<TokenId>& tokens, bool special = false) const;

  virtual std::size_t vocab_size() const noexcept = 0;
  virtual std::string_view token_text(TokenId token) const = 0;  ///< As the vocabulary spells it.
  virtual TokenKind token_kind(TokenId token) const = 0;
  virtual std::string_view model_name() const noexcept = 0;     ///< "gpt2", "llama", ...
  virtual std::string_view pre_tokenizer() const noexcept = 0;  ///< "qwen2", "llama-bpe", ... or "".

  // Special tokens, -1 when the model has none.
  TokenId bos() const noexcept { return bos_; }
  TokenId eos() const noexcept { return eos_; }
  TokenId eot() const noexcept { return special_token(SpecialToken::eot); }
  TokenId special_token(SpecialToken which) const noexcept {
    return special_[static_cast<std::size_t>(which)];
  }
  bool adds_bos() const noexcept { return adds_bos_; }
  bool adds_eos() const noexcept { return adds_eos_; }
  /// Encoding puts a space before plain text (SentencePiece); decoding a text takes one away at its start.
  bool adds_space_prefix() const noexcept { return adds_space_prefix_; }
  /// eos, eot, eom, the well-known end tokens found in the vocabulary ("<|im_end|>", "<|eot_id|>",
  /// "<end_of_turn>", ...) and those that end a part of a file to be filled in.
  bool is_end_of_generation(TokenId token) const noexcept;
  const std::vector<TokenId>& end_of_generation_tokens() const noexcept { return eog_; }
  /// tokenizer.ggml.suppress_tokens: what is never to be generated. Sorted.
  const std::vector<TokenId>& suppressed_tokens() const noexcept { return suppressed_; }
  /// The id whose vocabulary text is exactly `text`, or -1.
  virtual TokenId find_token(std::string_view text) const noexcept = 0;

 protected:
  TokenId bos_ = -1, eos_ = -1;
  SpecialIds special_{};
  bool adds_bos_ = false, adds_eos_ = false, adds_space_prefix_ = false;
  std::vector<TokenId> eog_;         ///< Sorted.
  std::vector<TokenId> suppressed_;  ///< Sorted.
};

/// Builds the tokenizer a model file describes. Throws Error(invalid_file) for an inconsistent vocabulary
/// (scores or types of another length, special ids out of range, byte tokens malformed, ...) and
/// Error(unsupported) for an unknown model or pre-tokenizer; the latter lists the known names. The result
/// does not refer to `metadata`.
std::unique_ptr<Tokenizer> make_tokenizer(const gguf::Metadata& metadata,
                                          const TokenizerOptions& options = {});

/// Names accepted as tokenizer.ggml.pre.
const std::vector<std::string>& known_pre_tokenizers();

/// Turns a stream of tokens into text without ever emitting half a UTF-8 character: bytes of an incomplete
/// character are held back until it is complete or proven invalid (then U+FFFD).
class StreamDecoder {
 public:
  /// `at_start`: the tokens begin a text (or an answer). Pass false to continue a text, where the first space
  /// counts.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool special = false, bool at_start = true)
      : tokenizer_(&tokenizer), special_(special), at_start_(at_start) {}
  /// Text that became complete with this token; may be empty.
  std::string push(TokenId token);
  /// What is held back at the end, as replacement characters.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool special_;
  bool at_start_;
  std::string pending_;
};

}  // namespace sluice::tokenizer
