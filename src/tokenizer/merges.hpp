#pragma once

#include <cstdint>
#include <vector>

#include "gguf/metadata.hpp"
#include "tokenizer/vocab.hpp"

namespace sluice::tokenizer {

/// The merges of a BPE vocabulary on ids: two tokens to their merge, its rank and the token it makes. 12
/// bytes per merge and a flat index of 4-byte slots. Immutable after construction.
class MergeTable {
 public:
  struct Merge {
    TokenId left = -1, right = -1, merged = -1;
  };
  static constexpr std::uint32_t k_none = 0xFFFF'FFFF;

  /// Reads tokenizer.ggml.merges ("left right", in order of rank). A merge whose parts or result the
  /// vocabulary lacks is left out with one warning for all; a repeated merge keeps its first rank. Without
  /// the key and with `ids_are_ranks`, any two tokens whose texts together are a token merge into it, and
  /// lower ids first: so vocabularies of tiktoken are meant. Throws Error(invalid_file) when the key is
  /// missing otherwise.
  MergeTable(const gguf::Metadata& metadata, const Vocab& vocab, bool ids_are_ranks);

  /// The merge of two tokens, to be looked up with merge(); k_none when the two do not merge.
  std::uint32_t find(TokenId left, TokenId right) const noexcept;
  const Merge& merge(std::uint32_t index) const noexcept { return merges_[index]; }
  /// Lower ranks merge first, of equal ones the leftmost.
  std::uint32_t rank(std::uint32_t index) const noexcept {
    return ids_are_ranks_ ? static_cast<std::uint32_t>(merges_[index].merged) : index;
  }
  std::size_t size() const noexcept { return merges_.size(); }

 private:
  void read(const gguf::Metadata& metadata, const gguf::StringArray& lines, const Vocab& vocab);
  void rebuild(const Vocab& vocab);
  void add(const Merge& merge);
  std::size_t find_slot(TokenId left, TokenId right) const noexcept;

  bool ids_are_ranks_ = false;
  std::vector<Merge> merges_;         ///< Usable ones, in the order of the file.
  std::vector<std::uint32_t> slots_;  ///< Open addressing, power of two, k_none is empty.
};

}  // namespace sluice::tokenizer
