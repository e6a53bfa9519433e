#pragma once

#include <bitset>
#include <cstddef>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.hpp"

namespace sluice::tokenizer {

/// Finds the tokens that are recognised as a whole in the text, before any splitting: user-defined ones
/// always, control (and unknown) ones on request. At each position the longest one wins, from left to right.
class SpecialMatcher {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;  ///< begin == end == text.size() when nothing was found.
    TokenId token = -1;
  };

  explicit SpecialMatcher(const Vocab& vocab);

  /// The first match at or after `from`. Time is linear in the distance, whatever the text.
  Match find(std::string_view text, std::size_t from, bool with_control) const noexcept;

 private:
  struct Set {
    std::vector<TokenId> tokens;  ///< Sorted by text.
    std::bitset<256> first_bytes;
  };
  TokenId longest_at(const Set& set, std::string_view text, std::size_t pos) const noexcept;

  const Vocab* vocab_;
  Set user_defined_;
  Set all_;
};

}  // namespace sluice::tokenizer
