#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.hpp"

namespace sluice::tokenizer {

/// Finds the tokens that are recognised as a whole in the text, before any splitting. At each position the
/// longest one wins, from left to right.
class SpecialMatcher {
 public:
  /// Which tokens are looked for.
  enum class Which {
    harmless,      ///< User-defined ones that do not look like markup: runs of spaces and the like.
    user_defined,  ///< All user-defined ones.
    all,           ///< These, control and unknown ones.
  };
  struct Match {
    std::size_t begin = 0, end = 0;  ///< begin == end == text.size() when nothing was found.
    TokenId token = -1;
  };

  explicit SpecialMatcher(const Vocab& vocab);

  /// The first match at or after `from`. Time is linear in the distance, whatever the text.
  Match find(std::string_view text, std::size_t from, Which which) const noexcept;

 private:
  struct Set {
    std::vector<TokenId> tokens;  ///< Sorted by text.
    std::bitset<256> first_bytes;
  };
  TokenId longest_at(const Set& set, std::string_view text, std::size_t pos) const noexcept;

  const Vocab* vocab_;
  std::array<Set, 3> sets_;  ///< By Which.
};

}  // namespace sluice::tokenizer
