#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.hpp"

namespace sluice::tokenizer {

/// What a name in tokenizer.ggml.pre means.
struct PreTokenizerSpec {
  std::string_view name;
  /// Regular expressions applied one after the other: what one matches, and what lies between its matches,
  /// are the pieces that the next one splits further.
  std::span<const std::string_view> stages;
  /// A word that is a token is taken whole, without merging (tiktoken vocabularies whose merges were
  /// reconstructed).
  bool ignore_merges = false;
  /// Whether the family starts a text with BOS when the file does not say.
  bool adds_bos = false;
  /// The text is brought to Unicode's form C first. GGUF does not carry the normalizer, so it goes with the
  /// name.
  bool normalizes_nfc = false;
  /// Pieces are spelled as SentencePiece does: in UTF-8, with U+2581 for a space and <0xNN> for a byte that
  /// no piece spells. Otherwise in GPT-2's alphabet of bytes.
  bool marks_spaces = false;
  /// A run of newlines that is a token is taken whole.
  bool keeps_newlines = false;
  /// Texts begin with BOS even where the file denies it (converters of the family wrote that wrongly).
  bool forces_bos = false;
  /// A file may lack the merges, as tiktoken does: the ids are the ranks.
  bool ids_are_ranks = false;
};

std::span<const PreTokenizerSpec> pre_tokenizer_specs() noexcept;
/// The entry of a name, or null.
const PreTokenizerSpec* find_pre_tokenizer(std::string_view name) noexcept;

/// Splits text into the words that BPE merges within. Immutable after construction; safe to use from several
/// threads, each with its own Scratch.
class PreTokenizer {
 public:
  /// Compiles the expressions. `spec` must outlive the object (the table's entries do).
  explicit PreTokenizer(const PreTokenizerSpec& spec);
  ~PreTokenizer();

  const PreTokenizerSpec& spec() const noexcept { return *spec_; }

  /// Calls `on_word` for the words in order; together they are the text. Runs of bytes that are not UTF-8 are
  /// words of their own. Near linear in the text; memory does not depend on it.
  void split(std::string_view text, base::FunctionRef<void(std::string_view word)> on_word) const;

 private:
  struct Code;
  struct Scratch;
  void split_stage(std::string_view text, std::size_t stage, Scratch& scratch,
                   base::FunctionRef<void(std::string_view)> on_word) const;

  const PreTokenizerSpec* spec_;
  std::vector<std::unique_ptr<Code>> stages_;
};

}  // namespace sluice::tokenizer
