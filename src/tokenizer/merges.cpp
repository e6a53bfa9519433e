#include "tokenizer/merges.hpp"

#include <bit>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"

namespace sluice::tokenizer {
namespace {

constexpr std::size_t k_max_merges = 16u << 20;
// Bounds the work on a hostile file. The longest tokens of today's vocabularies are far shorter.
constexpr std::size_t k_max_rebuilt_bytes = 1024;

std::size_t hash_pair(TokenId left, TokenId right) noexcept {
  // Finalizer of splitmix64 (Steele, Lea, Flood 2014): neighbouring ids must not land in neighbouring slots.
  std::uint64_t x = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
                    static_cast<std::uint32_t>(right);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<std::size_t>(x ^ (x >> 31));
}

}  // namespace

MergeTable::MergeTable(const gguf::Metadata& metadata, const Vocab& vocab, bool ids_are_ranks) {
  const gguf::StringArray* lines = metadata.get_strings("tokenizer.ggml.merges");
  if (lines != nullptr) {
    read(metadata, *lines, vocab);
  } else if (ids_are_ranks) {
    ids_are_ranks_ = true;
    rebuild(vocab);
  } else {
    base::fail(ErrorCode::invalid_file,
               "{}: tokenizer.ggml.merges is missing, which a BPE vocabulary needs; convert the model anew",
               metadata.source_name);
  }
}

void MergeTable::read(const gguf::Metadata& metadata, const gguf::StringArray& lines, const Vocab& vocab) {
  if (lines.size() > k_max_merges) {
    base::fail(ErrorCode::invalid_file, "{}: tokenizer.ggml.merges has {} entries, the limit is {}",
               metadata.source_name, lines.size(), k_max_merges);
  }
  merges_.reserve(lines.size());
  slots_.assign(std::bit_ceil(lines.size() + lines.size() / 2 + 1), k_none);
  std::size_t n_unusable = 0;
  std::string merged_text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    // A part may itself be a space in vocabularies that are not byte-level, hence the search from 1.
    const std::size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) {
      ++n_unusable;
      continue;
    }
    merged_text.assign(line.substr(0, space)).append(line.substr(space + 1));
    const Merge merge{vocab.find_piece(line.substr(0, space)), vocab.find_piece(line.substr(space + 1)),
                      vocab.find_piece(merged_text)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      ++n_unusable;
      continue;
    }
    add(merge);
  }
  merges_.shrink_to_fit();
  if (n_unusable > 0) {
    base::warn("{}: {} of {} merges name tokens that the vocabulary lacks; they are ignored",
               metadata.source_name, n_unusable, lines.size());
  }
}

void MergeTable::add(const Merge& merge) {
  std::uint32_t& slot = slots_[find_slot(merge.left, merge.right)];
  if (slot != k_none) return;
  slot = static_cast<std::uint32_t>(merges_.size());
  merges_.push_back(merge);
}

void MergeTable::rebuild(const Vocab& vocab) {
  std::vector<Merge> found;
  for (TokenId token = 0; vocab.contains(token); ++token) {
    const std::string_view text = vocab.text(token);
    if (text.size() > k_max_rebuilt_bytes || vocab.find_piece(text) != token) continue;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      // Only between characters of the spelling, of which each stands for a byte.
      if ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;
      const TokenId left = vocab.find_piece(text.substr(0, cut));
      const TokenId right = left < 0 ? -1 : vocab.find_piece(text.substr(cut));
      if (right >= 0) found.push_back({left, right, token});
    }
  }
  merges_.reserve(found.size());
  slots_.assign(std::bit_ceil(found.size() + found.size() / 2 + 1), k_none);
  for (const Merge& merge : found) add(merge);
}

std::size_t MergeTable::find_slot(TokenId left, TokenId right) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_pair(left, right) & mask;
  while (slots_[slot] != k_none) {
    const Merge& entry = merges_[slots_[slot]];
    if (entry.left == left && entry.right == right) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

std::uint32_t MergeTable::find(TokenId left, TokenId right) const noexcept {
  return slots_[find_slot(left, right)];
}

}  // namespace sluice::tokenizer
