#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

using TokenId = std::int32_t;

/// Tokens with a part of their own beside BOS and EOS.
enum class SpecialToken : std::uint8_t {
  eot,        ///< Ends a turn.
  eom,        ///< Ends a message of a turn that goes on with a tool.
  unknown,    ///< Stands for what the vocabulary cannot spell.
  separator,  ///< Between two texts.
  padding,
  mask,
  // Of code infilling: what lies before and behind the gap, where the gap's text begins, what fills up, and
  // the names of repository and file.
  fim_prefix,
  fim_suffix,
  fim_middle,
  fim_padding,
  fim_repository,
  fim_file,
};
inline constexpr std::size_t k_n_special_tokens = 12;

/// Part of a text that is put together from the markup of a chat format and the words of others.
struct TextPiece {
  std::string_view text;
  /// Control tokens spelled in it are recognised. In other pieces nothing that looks like markup is.
  bool is_markup = false;
};

/// The vocabulary of a model. A cheap handle that shares the model's tokenizer and keeps it alive.
/// Thread-safe.
class Tokenizer {
 public:
  /// The vocabulary of a model file, given by any shard. Only the header is read, so the model's architecture
  /// need not be known and its weights need not be there. `pre_tokenizer` overrides the file's
  /// tokenizer.ggml.pre unless empty. Throws Error(io), Error(invalid_file), and Error(unsupported) for a
  /// file without a vocabulary or with one of an unknown kind.
  static Tokenizer open(const std::filesystem::path& path, const std::string& pre_tokenizer = {});

  /// Text to tokens: any byte string is accepted. Throws Error(unsupported), as decode does, only when the
  /// model file has no vocabulary at all.
  std::vector<TokenId> encode(std::string_view text, bool add_special = true,
                              bool parse_special = false) const;
  /// The tokens of the pieces' whole text. `previous` is the token that it follows, or -1 when it begins a
  /// text: then BOS is added as the model asks. EOS never is.
  std::vector<TokenId> encode_pieces(std::span<const TextPiece> pieces, TokenId previous = -1) const;
  /// Tokens to text; invalid UTF-8 is replaced. Control tokens are left out unless `special`.
  std::string decode(const std::vector<TokenId>& tokens, bool special = false) const;
  /// The bytes that a token stands for, which may be part of a UTF-8 character. A control token is spelled;
  /// empty for an id out of range.
  std::string token_bytes(TokenId token) const;
  /// As the vocabulary spells it; empty for an id out of range.
  std::string token_text(TokenId token) const;
  std::size_t vocab_size() const noexcept;
  TokenId bos() const noexcept;  ///< -1 when there is none.
  TokenId eos() const noexcept;
  TokenId special_token(SpecialToken which) const noexcept;  ///< -1 when there is none.
  bool adds_bos() const noexcept;                            ///< encode() starts a text with BOS.
  bool is_end_of_generation(TokenId token) const noexcept;
  /// What the file says is never to be generated: ids in rising order.
  std::span<const TokenId> suppressed_tokens() const noexcept;
  /// The id of a token spelled exactly so, or -1.
  TokenId find_token(std::string_view text) const noexcept;

  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const noexcept { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Turns generated tokens into text as they come, never emitting half a UTF-8 character. Used by one thread
/// at a time, any; several may decode with one tokenizer at once, each with a stream of its own. Keeps the
/// vocabulary alive, so the tokenizer and its model may go first.
class TextStream {
 public:
  /// `special`: show control tokens. `at_start`: the tokens begin a text, so the space that SentencePiece
  /// puts before the first word is left out; false when they continue one.
  explicit TextStream(const Tokenizer& tokenizer, bool special = false, bool at_start = true);
  ~TextStream();
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;
  std::string push(TokenId token);
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
