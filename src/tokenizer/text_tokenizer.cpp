#include "tokenizer/text_tokenizer.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace sluice::tokenizer {
namespace {

bool is_space(char byte) noexcept {
  return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

// Phi-3's tokenizer takes the white space after its special tokens as part of them. The family is told by
// tokens that no other SentencePiece vocabulary has.
bool is_phi3(const Vocab& vocab) {
  return vocab.find("<|assistant|>") >= 0 && vocab.find("<|end|>") >= 0 && vocab.find("<|endoftext|>") >= 0;
}

bool keeps_space_in_phi3(std::string_view text) noexcept {
  return text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
}

}  // namespace

TextTokenizer::TextTokenizer(const gguf::Metadata& metadata, const FamilyDefaults& defaults)
    : vocab_(metadata),
      specials_(vocab_),
      model_name_(metadata.get_string("tokenizer.ggml.model").value_or("")),
      strips_after_special_(defaults.has_sentencepiece_ids && is_phi3(vocab_)) {
  load_special_ids(metadata, defaults);
}

void TextTokenizer::load_special_ids(const gguf::Metadata& metadata, const FamilyDefaults& defaults) {
  bos_ = vocab_.special_id(metadata, "tokenizer.ggml.bos_token_id");
  eos_ = vocab_.special_id(metadata, "tokenizer.ggml.eos_token_id");
  special_ = find_special_tokens(metadata, vocab_);
  if (defaults.has_sentencepiece_ids) {
    const auto is_control = [&](TokenId token) {
      return vocab_.contains(token) && vocab_.kind(token) == TokenKind::control;
    };
    TokenId& unknown = special_[static_cast<std::size_t>(SpecialToken::unknown)];
    if (bos_ < 0 && is_control(1)) bos_ = 1;
    if (eos_ < 0 && is_control(2)) eos_ = 2;
    if (unknown < 0 && vocab_.kind(0) == TokenKind::unknown) unknown = 0;
  }
  TokenId& eot = special_[static_cast<std::size_t>(SpecialToken::eot)];
  if (eot < 0) eot = find_end_of_turn(vocab_, eos_);
  adds_bos_ = bos_ >= 0 && (defaults.forces_bos ||
                            metadata.get_bool("tokenizer.ggml.add_bos_token").value_or(defaults.adds_bos));
  adds_eos_ = eos_ >= 0 && metadata.get_bool("tokenizer.ggml.add_eos_token").value_or(false);
  eog_ = find_end_tokens(vocab_, eos_, special_);
  load_suppressed(metadata);
}

void TextTokenizer::load_suppressed(const gguf::Metadata& metadata) {
  constexpr std::string_view k_key = "tokenizer.ggml.suppress_tokens";
  const gguf::Value* value = metadata.find(k_key);
  const auto* array = value == nullptr ? nullptr : std::get_if<gguf::Array>(&value->data);
  // Vocab warns of what is no list of ids.
  if (array == nullptr || !gguf::is_integer_type(array->element_type)) return;
  const std::vector<std::int64_t> ids = *metadata.get_ints(k_key);
  for (const std::int64_t id : ids) {
    if (id >= 0 && id < static_cast<std::int64_t>(vocab_.size()))
      suppressed_.push_back(static_cast<TokenId>(id));
  }
  std::sort(suppressed_.begin(), suppressed_.end());
  suppressed_.erase(std::unique(suppressed_.begin(), suppressed_.end()), suppressed_.end());
}

std::vector<TokenId> TextTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  using Which = SpecialMatcher::Which;
  std::vector<TokenId> out;
  if (options.add_special && adds_bos_) out.push_back(bos_);
  const Which which = options.parse_special ? Which::all : Which::user_defined;
  append_tokens(
      text, true, [&](std::size_t from) { return specials_.find(text, from, which); }, out);
  if (options.add_special && adds_eos_) out.push_back(eos_);
  return out;
}

std::vector<TokenId> TextTokenizer::encode_pieces(std::span<const TextPiece> pieces, TokenId previous) const {
  using Which = SpecialMatcher::Which;
  std::vector<TokenId> out;
  if (previous < 0 && adds_bos_) out.push_back(bos_);
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  std::size_t piece_idx = 0, piece_begin = 0;
  // Asked with positions that never fall. A special token lies within one piece, plain text may span several.
  const auto find = [&](std::size_t from) -> SpecialMatcher::Match {
    for (; piece_idx < pieces.size(); piece_begin += pieces[piece_idx++].text.size()) {
      const std::size_t piece_end = piece_begin + pieces[piece_idx].text.size();
      if (from >= piece_end) continue;
      const Which which = pieces[piece_idx].is_markup ? Which::all : Which::harmless;
      const SpecialMatcher::Match match =
          specials_.find(std::string_view(text).substr(0, piece_end), std::max(from, piece_begin), which);
      if (match.token >= 0) return match;
    }
    return {text.size(), text.size(), -1};
  };
  append_tokens(text, previous < 0 || is_special(previous), find, out);
  return out;
}

bool TextTokenizer::is_special(TokenId token) const noexcept {
  if (!vocab_.contains(token)) return false;
  const TokenKind kind = vocab_.kind(token);
  return kind == TokenKind::control || kind == TokenKind::unknown || kind == TokenKind::user_defined;
}

void TextTokenizer::append_tokens(std::string_view text, bool after_special, FindSpecial find,
                                  std::vector<TokenId>& out) const {
  for (std::size_t pos = 0; pos < text.size();) {
    const SpecialMatcher::Match match = find(pos);
    if (match.begin > pos) {
      encode_plain(text.substr(pos, match.begin - pos), after_special, out);
      after_special = false;
    }
    pos = match.end;
    if (match.token < 0) break;
    // Chat templates often write BOS themselves; a second one makes models ramble.
    const bool repeats_bos = match.token == bos_ && match.begin == 0 && !out.empty();
    if (!repeats_bos) out.push_back(match.token);
    after_special = true;
    if (strips_after_special_ && !keeps_space_in_phi3(vocab_.text(match.token))) {
      while (pos < text.size() && is_space(text[pos])) ++pos;
    }
  }
}

std::string TextTokenizer::token_bytes(TokenId token, bool special) const {
  std::string out;
  if (!vocab_.contains(token)) return out;
  switch (vocab_.kind(token)) {
    case TokenKind::normal:
    case TokenKind::byte:
      append_piece_bytes(token, out);
      break;
    case TokenKind::user_defined:
      out = vocab_.text(token);
      break;
    case TokenKind::unknown:
    case TokenKind::control:
    case TokenKind::unused:
      if (special) out = vocab_.text(token);
      break;
  }
  return out;
}

std::string_view TextTokenizer::token_text(TokenId token) const {
  return vocab_.contains(token) ? vocab_.text(token) : std::string_view();
}

TokenKind TextTokenizer::token_kind(TokenId token) const {
  return vocab_.contains(token) ? vocab_.kind(token) : TokenKind::unknown;
}

}  // namespace sluice::tokenizer
