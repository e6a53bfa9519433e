#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/merges.hpp"
#include "tokenizer/pretokenizer.hpp"
#include "tokenizer/text_tokenizer.hpp"

namespace sluice::tokenizer {

/// BPE by ranked merges: on bytes spelled in GPT-2's alphabet (tokenizer.ggml.model "gpt2"), or on characters
/// as SentencePiece spells them ("gemma4").
class BpeTokenizer final : public TextTokenizer {
 public:
  BpeTokenizer(const gguf::Metadata& metadata, const PreTokenizerSpec& spec);
  std::string_view pre_tokenizer() const noexcept override { return splitter_.spec().name; }

 protected:
  void encode_plain(std::string_view text, bool after_special, std::vector<TokenId>& out) const override;
  void append_piece_bytes(TokenId token, std::string& out) const override;

 private:
  struct Scratch;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  bool append_whole_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  void load_symbols(std::string_view word, Scratch& scratch) const;
  void append_byte(unsigned char byte, Scratch& scratch) const;
  void push_pair(std::uint32_t left, Scratch& scratch) const;
  void merge_symbols(Scratch& scratch) const;

  MergeTable merges_;
  PreTokenizer splitter_;
  std::array<TokenId, 256> byte_tokens_{};  ///< -1 where the vocabulary lacks the byte.
};

}  // namespace sluice::tokenizer
