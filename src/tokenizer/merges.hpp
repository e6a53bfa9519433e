#pragma once

#include <cstdint>
#include <vector>

#include "gguf/metadata.hpp"
#include "tokenizer/vocab.hpp"

namespace sluice::tokenizer {

/// The merges of a BPE vocabulary on ids: two tokens to the rank of their merge and the token it makes. 12
/// bytes per merge and a flat index of 4-byte slots. Immutable after construction.
class MergeTable {
 public:
  struct Merge {
    TokenId left = -1, right = -1, merged = -1;
  };
  static constexpr std::uint32_t k_no_rank = 0xFFFF'FFFF;

  /// Reads tokenizer.ggml.merges ("left right", in order of rank). A merge whose parts or result the
  /// vocabulary lacks is left out with one warning for all; a repeated merge keeps its first rank. Throws
  /// Error(invalid_file) when the key is missing.
  MergeTable(const gguf::Metadata& metadata, const Vocab& vocab);

  /// Lower ranks merge first; k_no_rank when the two do not merge.
  std::uint32_t find_rank(TokenId left, TokenId right) const noexcept;
  const Merge& merge(std::uint32_t rank) const noexcept { return merges_[rank]; }
  std::size_t size() const noexcept { return merges_.size(); }

 private:
  std::size_t find_slot(TokenId left, TokenId right) const noexcept;

  std::vector<Merge> merges_;         ///< By rank among the usable merges.
  std::vector<std::uint32_t> slots_;  ///< Open addressing, power of two, k_no_rank is empty.
};

}  // namespace sluice::tokenizer
