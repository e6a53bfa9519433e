#pragma once

#include <string>
#include <string_view>

namespace sluice::tokenizer {

// Byte-level BPE vocabularies (GPT-2 and its descendants) spell every byte as one printable character: the
// printable Latin-1 bytes as themselves, the other 68 as U+0100 and up in order.

/// Appends the character that stands for one byte.
void append_byte_spelling(std::string& out, unsigned char byte);

/// Appends the bytes that a token's spelling stands for. Characters outside the alphabet, which some
/// vocabularies hold in added tokens, stand for their own UTF-8.
void append_spelled_bytes(std::string& out, std::string_view spelling);

}  // namespace sluice::tokenizer
