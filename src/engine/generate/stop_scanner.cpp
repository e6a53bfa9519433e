#include "engine/generate/stop_scanner.hpp"

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"

namespace sluice::engine {

StopScanner::StopScanner(std::vector<std::string> stop) : stop_(std::move(stop)) {
  if (stop_.size() > k_max_strings) {
    base::fail(ErrorCode::invalid_argument, "{} stop strings were given, at most {} are allowed",
               stop_.size(), k_max_strings);
  }
  for (std::size_t i = 0; i < stop_.size(); ++i) {
    if (stop_[i].empty()) base::fail(ErrorCode::invalid_argument, "stop string {} is empty", i + 1);
    if (stop_[i].size() > k_max_bytes) {
      base::fail(ErrorCode::invalid_argument, "stop string {} has {} bytes, at most {} are allowed", i + 1,
                 stop_[i].size(), k_max_bytes);
    }
    if (!is_utf8(stop_[i])) base::fail(ErrorCode::invalid_argument, "stop string {} is not UTF-8", i + 1);
  }
}

void StopScanner::push(std::string_view piece, std::string& out) {
  if (matched()) return;
  if (stop_.empty()) {
    out.append(piece);
    return;
  }
  // What is held was scanned before: a match can only end in the new piece.
  std::size_t end = held_.size();
  held_.append(piece);
  while (end < held_.size()) {
    ++end;
    match_ = longest_ending_at(end);
    if (match_ != nullptr) {
      out.append(held_, 0, end - match_->size());
      held_.clear();
      return;
    }
  }
  const std::size_t free_bytes = held_.size() - held_bytes();
  out.append(held_, 0, free_bytes);
  held_.erase(0, free_bytes);
}

void StopScanner::finish(std::string& out) {
  out.append(held_);
  held_.clear();
}

const std::string* StopScanner::longest_ending_at(std::size_t end) const noexcept {
  const std::string* best = nullptr;
  const std::string_view text(held_.data(), end);
  for (const std::string& stop : stop_) {
    if ((best == nullptr || stop.size() > best->size()) && text.ends_with(stop)) best = &stop;
  }
  return best;
}

std::size_t StopScanner::held_bytes() const noexcept {
  const std::string_view text(held_);
  std::size_t longest = 0;
  for (const std::string& stop : stop_) {
    const std::size_t limit = std::min(stop.size() - 1, text.size());
    for (std::size_t length = limit; length > longest; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) {
        longest = length;
        break;
      }
    }
  }
  return longest;
}

bool is_utf8(std::string_view text) noexcept {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto first = static_cast<std::uint8_t>(text[i]);
    const std::size_t length = first < 0x80   ? 1
                               : first < 0xc2 ? 0
                               : first < 0xe0 ? 2
                               : first < 0xf0 ? 3
                               : first < 0xf5 ? 4
                                              : 0;
    if (length == 0 || text.size() - i < length) return false;
    for (std::size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<std::uint8_t>(text[i + k]);
      // The second byte of some leads is narrower (Unicode standard, table 3-7).
      const std::uint8_t low = k != 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
      const std::uint8_t high = k != 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
      if (byte < low || byte > high) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace sluice::engine
