// A small vocabulary and a text, both from the input. A vocabulary is refused with an error or works: every
// text can be encoded, ids are in range, text comes out in whole characters, and where the vocabulary has all
// bytes no byte of the text is lost.
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "input.hpp"
#include "sluice/error.hpp"
#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/normalize.hpp"
#include "tokenizer/pretokenizer.hpp"
#include "tokenizer/utf8.hpp"
#include "tokenizer/vocab_support.hpp"

namespace {

using namespace sluice;
using namespace sluice::tokenizer;
using fuzz::require;
using sluice::tokenizer::Tokenizer;

constexpr std::string_view k_space_mark = "\xE2\x96\x81";

struct Made {
  std::unique_ptr<Tokenizer> tokenizer;
  bool is_bpe = false;
  bool marks_spaces = true;  ///< Spelled as SentencePiece does.
  bool has_all_bytes = false;
  bool has_user_defined = false;      ///< A token that the text may spell.
  bool has_odd_user_defined = false;  ///< One that is not plain ASCII.
};

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

void add_bytes(test::VocabBuilder& builder, bool marks_spaces) {
  for (int byte = 0; byte < 256; ++byte) {
    if (!marks_spaces) {
      std::string spelling;
      append_byte_spelling(spelling, static_cast<unsigned char>(byte));
      builder.add(spelling);
    } else {
      builder.add(fmt::format("<0x{:02X}>", byte), TokenKind::byte);
    }
  }
  // Without it the space before the text is spelled in bytes, and decoding does not know it for one.
  if (marks_spaces) builder.add(k_space_mark);
}

/// As SentencePiece vocabularies spell it.
std::string spelled_with_mark(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ') {
      out.append(k_space_mark);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

/// Pieces with kinds and scores; for BPE also merges of pieces that are there.
void add_pieces(fuzz::Input& input, test::VocabBuilder& builder, Made& made) {
  std::vector<std::string> pieces;
  for (std::size_t n = input.below(24); n > 0; --n) {
    const std::uint8_t kind_byte = input.byte();
    const std::size_t n_bytes = input.below(7);
    std::string text(input.text(n_bytes));
    const auto kind = static_cast<TokenKind>(kind_byte % 16 == 0   ? 3
                                             : kind_byte % 16 == 1 ? 4
                                             : kind_byte % 64 == 2 ? 2 + kind_byte / 64
                                                                   : 1);
    if (!made.marks_spaces && kind == TokenKind::normal) {
      std::string spelling;
      for (const char byte : text) append_byte_spelling(spelling, static_cast<unsigned char>(byte));
      text = spelling;
    } else if (made.marks_spaces) {
      text = spelled_with_mark(text);
    }
    if (kind == TokenKind::user_defined) {
      made.has_user_defined = true;
      made.has_odd_user_defined = made.has_odd_user_defined || !is_plain(text);
    }
    builder.add(text, kind, static_cast<float>(static_cast<std::int8_t>(input.byte())));
    pieces.push_back(text);
  }
  for (std::size_t n = pieces.empty() ? 0 : input.below(16); n > 0; --n) {
    const std::string& left = pieces[input.below(pieces.size())];
    const std::string& right = pieces[input.below(pieces.size())];
    builder.add_merge(left + (input.byte() % 32 == 0 ? "" : " ") + right);
    builder.add(left + right);
  }
}

Made make(fuzz::Input& input) {
  Made made;
  const std::uint8_t flags = input.byte();
  made.is_bpe = (flags & 1) != 0;
  made.has_all_bytes = (flags & 2) == 0;
  const auto& names = known_pre_tokenizers();
  const std::string pre = names[input.below(std::min<std::size_t>(names.size(), 256))];
  made.marks_spaces = !made.is_bpe || find_pre_tokenizer(pre)->marks_spaces;
  test::VocabBuilder builder(made.is_bpe ? "gpt2" : "llama", made.is_bpe ? pre : "");
  builder.add("<unk>", TokenKind::unknown);
  builder.add("<s>", TokenKind::control);
  builder.add("</s>", TokenKind::control);
  if (made.has_all_bytes) add_bytes(builder, made.marks_spaces);
  add_pieces(input, builder, made);
  if ((flags & 4) != 0) builder.set_bool("tokenizer.ggml.add_space_prefix", false);
  if ((flags & 8) != 0) builder.set_bool("tokenizer.ggml.add_bos_token", true);
  if ((flags & 16) != 0) builder.set_uint("tokenizer.ggml.bos_token_id", input.byte());
  if ((flags & 32) != 0) builder.set_uint("tokenizer.ggml.eos_token_id", input.byte());
  if ((flags & 64) != 0) builder.set_uint("tokenizer.ggml.unknown_token_id", input.byte());
  if ((flags & 128) != 0) builder.kinds().resize(builder.kinds().size() - input.below(2));
  made.tokenizer = builder.build();
  return made;
}

/// The text with each space mark as a space.
std::string with_spaces(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const bool is_mark = text.starts_with(k_space_mark);
    out.push_back(is_mark ? ' ' : text.front());
    text.remove_prefix(is_mark ? k_space_mark.size() : 1);
  }
  return out;
}

void check_decoding(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens, bool special) {
  StreamDecoder decoder(tokenizer, special);
  std::string joined;
  for (const TokenId token : tokens) {
    const std::string part = decoder.push(token);
    require(valid_utf8_prefix(part, 0) == part.size(), "a part of the text is no UTF-8");
    joined += part;
  }
  joined += decoder.finish();
  require(joined == tokenizer.decode(tokens, special), "parts and whole differ");
}

void check_bytes(const Made& made, const std::string& text) {
  const Tokenizer& tokenizer = *made.tokenizer;
  std::string back;
  for (const TokenId token : tokenizer.encode(text, {.add_special = false}))
    back += tokenizer.token_bytes(token);
  if (!made.marks_spaces) {
    if (made.has_odd_user_defined) return;
    const bool normalizes = find_pre_tokenizer(tokenizer.pre_tokenizer())->normalizes_nfc;
    if (normalizes && made.has_user_defined) return;
    require(back == (normalizes ? normalize_nfc(text) : text), "a byte is lost");
    return;
  }
  if (!tokenizer.adds_space_prefix()) {
    require(with_spaces(back) == with_spaces(text), "a byte is lost");
  } else if (!made.has_user_defined) {
    std::string expected;
    if (!text.empty()) expected.push_back(' ');
    expected.append(with_spaces(text));
    require(with_spaces(back) == expected, "a byte is lost");
    if (text.find(k_space_mark) == std::string::npos && valid_utf8_prefix(text, 0) == text.size())
      require(tokenizer.decode(tokenizer.encode(text, {.add_special = false})) == text,
              "the text does not come back");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, std::min<std::size_t>(size, 4096));
  try {
    const Made made = make(input);
    const std::string text(input.rest());
    const auto n_tokens = static_cast<TokenId>(made.tokenizer->vocab_size());
    for (const bool parse_special : {false, true}) {
      const auto tokens = made.tokenizer->encode(text, {.parse_special = parse_special});
      for (const TokenId token : tokens) require(token >= 0 && token < n_tokens, "an id is out of range");
      check_decoding(*made.tokenizer, tokens, parse_special);
    }
    if (made.has_all_bytes) check_bytes(made, text);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::invalid_file && *error.what() != '\0', "a wrong error");
  }
  return 0;
}
