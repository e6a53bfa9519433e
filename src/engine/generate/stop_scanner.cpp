#include "engine/generate/stop_scanner.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "tokenizer/utf8.hpp"

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
  return tokenizer::valid_utf8_prefix(text, 0) == text.size();
}

}  // namespace sluice::engine
