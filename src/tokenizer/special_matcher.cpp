#include "tokenizer/special_matcher.hpp"

#include <algorithm>
#include <cstddef>

#include "tokenizer/chat_marks.hpp"

namespace sluice::tokenizer {
namespace {

// Bounds the work per position, and with it the time on text made to look like the start of a special token.
constexpr std::size_t k_max_special_bytes = 512;

}  // namespace

SpecialMatcher::SpecialMatcher(const Vocab& vocab) : vocab_(&vocab) {
  const auto set = [this](Which which) -> Set& { return sets_[static_cast<std::size_t>(which)]; };
  for (TokenId token = 0; vocab.contains(token); ++token) {
    const TokenKind kind = vocab.kind(token);
    const std::string_view text = vocab.text(token);
    if (text.empty() || text.size() > k_max_special_bytes || vocab.find(text) != token) continue;
    const bool user_defined = kind == TokenKind::user_defined;
    if (!user_defined && kind != TokenKind::control && kind != TokenKind::unknown) continue;
    if (user_defined && !looks_like_markup(text)) set(Which::harmless).tokens.push_back(token);
    if (user_defined) set(Which::user_defined).tokens.push_back(token);
    set(Which::all).tokens.push_back(token);
  }
  for (Set& each : sets_) {
    each.tokens.shrink_to_fit();
    std::sort(each.tokens.begin(), each.tokens.end(),
              [&](TokenId a, TokenId b) { return vocab.text(a) < vocab.text(b); });
    for (const TokenId token : each.tokens)
      each.first_bytes.set(static_cast<unsigned char>(vocab.text(token)[0]));
  }
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, std::size_t from,
                                           Which which) const noexcept {
  const Set& set = sets_[static_cast<std::size_t>(which)];
  if (!set.tokens.empty()) {
    for (std::size_t pos = from; pos < text.size(); ++pos) {
      if (!set.first_bytes.test(static_cast<unsigned char>(text[pos]))) continue;
      const TokenId token = longest_at(set, text, pos);
      if (token >= 0) return {pos, pos + vocab_->text(token).size(), token};
    }
  }
  return {text.size(), text.size(), -1};
}

TokenId SpecialMatcher::longest_at(const Set& set, std::string_view text, std::size_t pos) const noexcept {
  // Narrows the sorted list to the texts that share one more byte with the input, as walking down a trie
  // would.
  auto begin = set.tokens.begin();
  auto end = set.tokens.end();
  TokenId longest = -1;
  for (std::size_t depth = 0; pos + depth < text.size() && begin != end; ++depth) {
    const auto byte = static_cast<unsigned char>(text[pos + depth]);
    // All texts in the range are longer than `depth`: the shorter one was stepped over when it matched.
    begin = std::partition_point(begin, end, [&](TokenId token) {
      return static_cast<unsigned char>(vocab_->text(token)[depth]) < byte;
    });
    end = std::partition_point(begin, end, [&](TokenId token) {
      return static_cast<unsigned char>(vocab_->text(token)[depth]) == byte;
    });
    if (begin != end && vocab_->text(*begin).size() == depth + 1) longest = *begin++;
  }
  return longest;
}

}  // namespace sluice::tokenizer
