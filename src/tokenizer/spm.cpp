#include "tokenizer/spm.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "tokenizer/byte_tokens.hpp"
#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {
namespace {

// A longer segment is cut. It keeps positions in 32 bits and the memory of one segment bounded.
constexpr std::size_t k_max_segment_bytes = 16u << 20;
constexpr std::uint32_t k_none = 0xFFFF'FFFF;

struct Symbol {
  std::uint32_t begin, length;  ///< Length 0: merged into its left neighbour.
  std::uint32_t prev, next;
};

struct Pair {
  float score;
  std::uint32_t left, length;
};

// Heap order: the best score first, the leftmost among equal ones.
bool is_worse(const Pair& a, const Pair& b) noexcept {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
}

// Where the segment that starts at `begin` ends: before the next space mark that follows something else.
std::size_t segment_end(std::string_view text, std::size_t begin, bool splits_at_spaces) noexcept {
  std::size_t end = std::min(begin + k_max_segment_bytes, text.size());
  // A cut must not fall into a character, which has at most three bytes after its first.
  for (int i = 0; i < 3 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; ++i)
    --end;
  if (!splits_at_spaces) return end;
  std::size_t pos = begin;
  while (text.substr(pos).starts_with(k_space_mark)) pos += k_space_mark.size();
  return std::min(end, text.find(k_space_mark, pos));
}

}  // namespace

struct SpmTokenizer::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Pair> heap;
};

SpmTokenizer::SpmTokenizer(const gguf::Metadata& metadata)
    : TextTokenizer(metadata, {.adds_bos = true, .has_sentencepiece_ids = true}) {
  if (!vocab().has_scores()) {
    base::fail(ErrorCode::invalid_file,
               "{}: tokenizer.ggml.scores is missing, which a SentencePiece vocabulary needs; convert the "
               "model anew",
               metadata.source_name);
  }
  byte_tokens_ = find_byte_tokens(vocab(), metadata.source_name);
  splits_at_spaces_ = !joins_words();
  adds_space_prefix_ = metadata.get_bool("tokenizer.ggml.add_space_prefix").value_or(true);
}

bool SpmTokenizer::joins_words() const noexcept {
  for (TokenId token = 0; vocab().contains(token); ++token) {
    std::string_view text = vocab().text(token);
    if (vocab().kind(token) != TokenKind::normal && vocab().kind(token) != TokenKind::user_defined) continue;
    while (text.starts_with(k_space_mark)) text.remove_prefix(k_space_mark.size());
    if (text.find(k_space_mark) != std::string_view::npos) return true;
  }
  return false;
}

void SpmTokenizer::encode_plain(std::string_view text, bool after_special, std::vector<TokenId>& out) const {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 4 + k_space_mark.size());
  if (adds_space_prefix_ && after_special) escaped.append(k_space_mark);
  append_marked(escaped, text);
  Scratch scratch;
  const std::string_view all = escaped;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = segment_end(all, begin, splits_at_spaces_);
    encode_segment(all.substr(begin, end - begin), scratch, out);
    begin = end;
  }
}

void SpmTokenizer::encode_segment(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const {
  load_symbols(text, scratch);
  merge_symbols(text, scratch);
  for (std::uint32_t i = 0; i != k_none; i = scratch.symbols[i].next) {
    append_symbol(text.substr(scratch.symbols[i].begin, scratch.symbols[i].length), out);
  }
}

void SpmTokenizer::load_symbols(std::string_view text, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    // A broken character must not be merged over: each of its bytes is spelled on its own.
    const std::uint32_t length = step.kind == Utf8Kind::valid ? step.length : 1;
    const auto index = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({static_cast<std::uint32_t>(pos), length, index == 0 ? k_none : index - 1, index + 1});
    pos += length;
  }
  symbols.back().next = k_none;
}

void SpmTokenizer::push_pair(std::string_view text, std::uint32_t left, Scratch& scratch) const {
  if (left == k_none) return;
  const Symbol& symbol = scratch.symbols[left];
  if (symbol.next == k_none) return;
  const std::uint32_t length = symbol.length + scratch.symbols[symbol.next].length;
  const TokenId token = vocab().find_piece(text.substr(symbol.begin, length));
  if (token < 0) return;
  scratch.heap.push_back({vocab().score(token), left, length});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), is_worse);
}

void SpmTokenizer::merge_symbols(std::string_view text, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i) push_pair(text, i, scratch);
  // Every merge removes one symbol and adds at most two pairs, so the loop ends after 3n pairs at most.
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_worse);
    const Pair pair = heap.back();
    heap.pop_back();
    Symbol& left = symbols[pair.left];
    // A pair is out of date when either side grew or went away meanwhile. Symbols only grow, so the summed
    // length tells the two states apart.
    if (left.length == 0 || left.next == k_none) continue;
    Symbol& right = symbols[left.next];
    if (left.length + right.length != pair.length) continue;
    left.length = pair.length;
    right.length = 0;
    left.next = right.next;
    if (left.next != k_none) symbols[left.next].prev = pair.left;
    push_pair(text, left.prev, scratch);
    push_pair(text, pair.left, scratch);
  }
}

void SpmTokenizer::append_symbol(std::string_view piece, std::vector<TokenId>& out) const {
  const TokenId token = vocab().find_piece(piece);
  if (token >= 0) {
    out.push_back(token);
    return;
  }
  for (const char byte : piece) {
    TokenId spelled = byte_tokens_[static_cast<unsigned char>(byte)];
    if (spelled < 0) spelled = vocab().find_piece(std::string_view(&byte, 1));
    if (spelled < 0) spelled = unknown_token();
    if (spelled >= 0) out.push_back(spelled);
  }
}

void SpmTokenizer::append_piece_bytes(TokenId token, std::string& out) const {
  append_unmarked(out, vocab(), token);
}

}  // namespace sluice::tokenizer
