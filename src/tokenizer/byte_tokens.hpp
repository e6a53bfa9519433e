#pragma once

#include <array>
#include <string>
#include <string_view>

#include "tokenizer/vocab.hpp"

// How vocabularies in SentencePiece's manner spell what GPT-2's alphabet of bytes spells elsewhere.
namespace sluice::tokenizer {

/// U+2581, which stands for a space.
inline constexpr std::string_view k_space_mark = "\xE2\x96\x81";

/// The ids of "<0x00>" to "<0xFF>", which spell bytes that no other token does; -1 where the vocabulary lacks
/// one. Throws Error(invalid_file) for a byte token that is spelled otherwise; `file` is named in it.
std::array<TokenId, 256> find_byte_tokens(const Vocab& vocab, std::string_view file);

/// Appends the text with a mark for each space.
void append_marked(std::string& out, std::string_view text);

/// Appends the byte that a byte token stands for, or the text of another token with spaces for marks.
void append_unmarked(std::string& out, const Vocab& vocab, TokenId token);

}  // namespace sluice::tokenizer
