#include "tokenizer/bpe.hpp"

#include <algorithm>
#include <string>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/byte_tokens.hpp"
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

struct Pair {
  std::uint32_t rank, left, merge;
};

// Heap order: the lowest rank first, the leftmost among equal ones.
constexpr bool is_later(const Pair& a, const Pair& b) noexcept {
  return a.rank > b.rank || (a.rank == b.rank && a.left > b.left);
}

}  // namespace

struct BpeTokenizer::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Pair> heap;
  std::string spelling;

  void append(TokenId token) {
    const auto index = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({token, index == 0 ? k_none : index - 1, index + 1});
  }
};

BpeTokenizer::BpeTokenizer(const gguf::Metadata& metadata, const PreTokenizerSpec& spec)
    : TextTokenizer(metadata, {.adds_bos = spec.adds_bos, .forces_bos = spec.forces_bos}),
      merges_(metadata, vocab(), spec.ids_are_ranks),
      splitter_(spec) {
  if (spec.marks_spaces) {
    byte_tokens_ = find_byte_tokens(vocab(), metadata.source_name);
    return;
  }
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
  if (splitter_.spec().marks_spaces) {
    append_marked(normalized, text);
    text = normalized;
  }
  Scratch scratch;
  splitter_.split(text, [&](std::string_view word) {
    while (word.size() > k_max_word_bytes) {
      std::size_t cut = k_max_word_bytes;
      // Not within a character, which has at most three bytes after its first.
      for (int i = 0; i < 3 && (static_cast<unsigned char>(word[cut]) & 0xC0) == 0x80; ++i) --cut;
      encode_word(word.substr(0, cut), scratch, out);
      word.remove_prefix(cut);
    }
    encode_word(word, scratch, out);
  });
}

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  const PreTokenizerSpec& spec = splitter_.spec();
  const bool is_whole = spec.ignore_merges || (spec.keeps_newlines && word.front() == '\n');
  if (is_whole && append_whole_word(word, scratch, out)) return;
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
  if (!splitter_.spec().marks_spaces) {
    scratch.spelling.clear();
    for (const char byte : word) append_byte_spelling(scratch.spelling, static_cast<unsigned char>(byte));
    word = scratch.spelling;
  }
  const TokenId token = vocab().find_piece(word);
  if (token < 0) return false;
  out.push_back(token);
  return true;
}

void BpeTokenizer::load_symbols(std::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  if (!splitter_.spec().marks_spaces) {
    for (const char byte : word) append_byte(static_cast<unsigned char>(byte), scratch);
  } else {
    for (std::size_t pos = 0; pos < word.size();) {
      const Utf8Step step = utf8_step(word, pos);
      const std::string_view character = word.substr(pos, step.length);
      const TokenId token = step.kind == Utf8Kind::valid ? vocab().find_piece(character) : -1;
      if (token >= 0) {
        scratch.append(token);
      } else {
        for (const char byte : character) append_byte(static_cast<unsigned char>(byte), scratch);
      }
      pos += step.length;
    }
  }
  if (!scratch.symbols.empty()) scratch.symbols.back().next = k_none;
}

void BpeTokenizer::append_byte(unsigned char byte, Scratch& scratch) const {
  const TokenId token = byte_tokens_[byte];
  if (token >= 0) {
    scratch.append(token);
  } else if (unknown_token() >= 0) {
    scratch.append(unknown_token());
  } else if (byte >= 0x80) {
    // Vocabularies may lack the bytes that UTF-8 never uses; such a byte becomes the replacement character.
    for (const char part : k_replacement_character)
      scratch.append(byte_tokens_[static_cast<unsigned char>(part)]);
  } else {
    // A control character that the model never saw (Falcon has no vertical tab): its own tokenizer leaves
    // it out after merging, so it still keeps its neighbours apart.
    scratch.append(-1);
  }
}

void BpeTokenizer::push_pair(std::uint32_t left, Scratch& scratch) const {
  if (left == k_none) return;
  const Symbol& symbol = scratch.symbols[left];
  if (symbol.next == k_none) return;
  const std::uint32_t merge = merges_.find(symbol.token, scratch.symbols[symbol.next].token);
  if (merge == MergeTable::k_none) return;
  scratch.heap.push_back({merges_.rank(merge), left, merge});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), is_later);
}

void BpeTokenizer::merge_symbols(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i) push_pair(i, scratch);
  // Every merge removes one symbol and adds at most two pairs, so the loop ends after 3n pairs at most.
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_later);
    const std::uint32_t left_index = heap.back().left;
    const MergeTable::Merge& merge = merges_.merge(heap.back().merge);
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
  if (splitter_.spec().marks_spaces) {
    append_unmarked(out, vocab(), token);
  } else {
    append_spelled_bytes(out, vocab().text(token));
  }
}

}  // namespace sluice::tokenizer
