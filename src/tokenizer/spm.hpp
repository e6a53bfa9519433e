#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/text_tokenizer.hpp"

namespace sluice::tokenizer {

/// SentencePiece's BPE variant (tokenizer.ggml.model "llama"): the neighbours whose union has the best score
/// merge first; what stays unknown is spelled in byte tokens.
class SpmTokenizer final : public TextTokenizer {
 public:
  explicit SpmTokenizer(const gguf::Metadata& metadata);
  std::string_view pre_tokenizer() const noexcept override { return {}; }

 protected:
  void encode_plain(std::string_view text, bool after_special, std::vector<TokenId>& out) const override;
  void append_piece_bytes(TokenId token, std::string& out) const override;

 private:
  struct Scratch;
  bool joins_words() const noexcept;
  void encode_segment(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const;
  void load_symbols(std::string_view text, Scratch& scratch) const;
  void push_pair(std::string_view text, std::uint32_t left, Scratch& scratch) const;
  void merge_symbols(std::string_view text, Scratch& scratch) const;
  void append_symbol(std::string_view piece, std::vector<TokenId>& out) const;

  std::array<TokenId, 256> byte_tokens_{};  ///< -1 where the vocabulary lacks the byte.
  bool splits_at_spaces_ = false;           ///< No piece has a space mark after another character.
};

}  // namespace sluice::tokenizer
