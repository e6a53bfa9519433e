#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::engine {

/// Finds stop strings in text that comes in pieces, and holds back only what may still become one.
///
/// The match that is complete first counts, whatever the pieces: text behind it is dropped, so the result
/// does not depend on how tokens cut the text. Of several matches complete at the same byte the longest
/// counts.
class StopScanner {
 public:
  /// Throws Error(invalid_argument) for more than k_max_strings strings, and for one that is empty, longer
  /// than k_max_bytes or not UTF-8 (it could only match inside a character).
  explicit StopScanner(std::vector<std::string> stop);

  static constexpr std::size_t k_max_strings = 256;
  static constexpr std::size_t k_max_bytes = 4096;

  /// Takes the next piece and appends to `out` what is now certain to lie before any match. Pieces after a
  /// match are ignored.
  void push(std::string_view piece, std::string& out);
  /// The text has ended: appends what was held back. Nothing after a match.
  void finish(std::string& out);

  bool matched() const noexcept { return match_ != nullptr; }
  /// The string that was met; empty before.
  std::string_view match() const noexcept { return match_ == nullptr ? std::string_view() : *match_; }

 private:
  const std::string* longest_ending_at(std::size_t end) const noexcept;
  std::size_t held_bytes() const noexcept;

  std::vector<std::string> stop_;
  std::string held_;                    ///< Not yet given out; begins like some stop string, or is empty.
  const std::string* match_ = nullptr;  ///< Into stop_.
};

/// Whether the bytes are well-formed UTF-8 (no overlong forms, no surrogates).
bool is_utf8(std::string_view text) noexcept;

}  // namespace sluice::engine
