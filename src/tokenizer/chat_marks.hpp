#pragma once

#include <span>
#include <string_view>

namespace sluice::tokenizer {

/// Tokens that end a turn in the well-known chat formats, formats with a turn token before end-of-text
/// tokens.
std::span<const std::string_view> turn_end_marks() noexcept;
/// Other tokens that end a generation.
std::span<const std::string_view> other_end_marks() noexcept;
/// Whether a token spelled so is markup of a chat format: it opens, names or ends a turn. Not so "<s>" and
/// "</s>", which are HTML, too, and mean a beginning and an end only where the file says so.
bool is_chat_mark(std::string_view text) noexcept;
/// Whether a token spelled so may be markup of some format: "<|x|>", "</tool>", "[X]".
bool looks_like_markup(std::string_view text) noexcept;

}  // namespace sluice::tokenizer
