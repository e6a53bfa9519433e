#include "tokenizer/bpe.hpp"

#include <algorithm>
#include <functional>
#include <string>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/normalize.hpp"
#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {
namespace {

// A longer word is cut. It keeps positions in 32 bits and the memory of one word below half a gigabyte.
constexpr std::size_t k_max_word_bytes = 16u << 20;
constexpr std::uint32_t k_none = 0xFFFF'FFFF;

struct Symbol {
  TokenId token;  ///< -1: merged into its left neighbour, or a byte without a token.
  std::uint32_t prev, next;
};

// Rank above position: the lowest rank first, the leftmost among equal ones.
using Pair = std::uint64_t;
constexpr Pair make_pair(std::uint32_t rank, std::uint32_t left) {
  return (static_cast<Pair>(rank) << 32) | left;
}

}  // namespace

struct BpeTokenizer::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Pair> heap;
  std::string spelling;
};

BpeTokenizer::BpeTokenizer(const gguf::Metadata& metadata, const PreTokenizerSpec& spec)
    : TextTokenizer(metadata, {.adds_bos = spec.adds_bos}), merges_(metadata, vocab()), splitter_(spec) {
  std::string spelling;
  for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    spelling.clear();
    append_byte_spelling(spelling, static_cast<unsigned char>(byte));
    const TokenId token = vocab().find(spelling);
    // An added token of that spelling stands for the character, not for the byte.
    byte_tokens_[byte] = token >= 0 && vocab().kind(token) == TokenKind::normal ? token : -1;
  }
}

void BpeTokenizer::encode_plain(std::string_view text, bool /*after_special*/,
                                std::vector<TokenId>& out) const {
  std::string normalized;
  if (splitter_.spec().normalizes_nfc && !is_surely_nfc(text)) {
    normalized = normalize_nfc(text);
    text = normalized;
  }
  Scratch scratch;
  splitter_.split(text, [&](std::string_view word) {
    for (std::size_t pos = 0; pos < word.size(); pos += k_max_word_bytes) {
      encode_word(word.substr(pos, k_max_word_bytes), scratch, out);
    }
  });
}

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  if (splitter_.spec().ignore_merges && append_whole_word(word, scratch, out)) return;
  load_symbols(word, scratch);
  merge_symbols(scratch);
  if (scratch.symbols.empty()) return;
  for (std::uint32_t i = 0; i != k_none; i = scratch.symbols[i].next) {
    if (scratch.symbols[i].token >= 0) out.push_back(scratch.symbols[i].token);
  }
}

bool BpeTokenizer::append_whole_word(std::string_view word, Scratch& scratch,
                                     std::vector<TokenId>& out) const {
  if (word.size() > vocab().max_text_bytes()) return false;
  scratch.spelling.clear();
  for (const char byte : word) append_byte_spelling(scratch.spelling, static_cast<unsigned char>(byte));
  const TokenId token = vocab().find_piece(scratch.spelling);
  if (token < 0) return false;
  out.push_back(token);
  return true;
}

void BpeTokenizer::load_symbols(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  const auto append = [&](TokenId token) {
    const auto index = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({token, index == 0 ? k_none : index - 1, index + 1});
  };
  for (const char byte : word) {
    const TokenId token = byte_tokens_[static_cast<unsigned char>(byte)];
    if (token >= 0) {
      append(token);
    } else if (unknown_token() >= 0) {
      append(unknown_token());
    } else if (static_cast<unsigned char>(byte) >= 0x80) {
      // Vocabularies may lack the bytes that UTF-8 never uses; such a byte becomes the replacement character.
      for (const char part : k_replacement_character) append(byte_tokens_[static_cast<unsigned char>(part)]);
    } else {
      // A control character that the model never saw (Falcon has no vertical tab): its own tokenizer leaves
      // it out after merging, so it still keeps its neighbours apart.
      append(-1);
    }
  }
  if (!symbols.empty()) symbols.back().next = k_none;
}

void BpeTokenizer::push_pair(std::uint32_t left, Scratch& scratch) const {
  if (left == k_none) return;
  const Symbol& symbol = scratch.symbols[left];
  if (symbol.next == k_none) return;
  const std::uint32_t rank = merges_.find_rank(symbol.token, scratch.symbols[symbol.next].token);
  if (rank == MergeTable::k_no_rank) return;
  scratch.heap.push_back(make_pair(rank, left));
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
}

void BpeTokenizer::merge_symbols(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i) push_pair(i, scratch);
  // Every merge removes one symbol and adds at most two pairs, so the loop ends after 3n pairs at most.
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto left_index = static_cast<std::uint32_t>(heap.back());
    const MergeTable::Merge& merge = merges_.merge(static_cast<std::uint32_t>(heap.back() >> 32));
    heap.pop_back();
    Symbol& left = symbols[left_index];
    // A pair is out of date when either side was merged meanwhile.
    if (left.token != merge.left || left.next == k_none) continue;
    Symbol& right = symbols[left.next];
    if (right.token != merge.right) continue;
    left.token = merge.merged;
    right.token = -1;
    left.next = right.next;
    if (left.next != k_none) symbols[left.next].prev = left_index;
    push_pair(left.prev, scratch);
    push_pair(left_index, scratch);
  }
}

void BpeTokenizer::append_piece_bytes(TokenId token, std::string& out) const {
  append_spelled_bytes(out, vocab().text(token));
}

}  // namespace sluice::tokenizer
