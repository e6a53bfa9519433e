#include "tokenizer/special_tokens.hpp"

#include <algorithm>
#include <string>

#include "tokenizer/vocab.hpp"

namespace sluice::tokenizer {
namespace {

struct SpecialName {
  SpecialToken which;
  std::string_view key;      ///< tokenizer.ggml.KEY_token_id
  std::string_view old_key;  ///< Empty: none.
};

constexpr auto k_names = std::to_array<SpecialName>({
    {SpecialToken::eot, "eot", {}},
    {SpecialToken::eom, "eom", {}},
    {SpecialToken::unknown, "unknown", {}},
    {SpecialToken::separator, "seperator", {}},  // The format spells it so.
    {SpecialToken::padding, "padding", {}},
    {SpecialToken::mask, "mask", {}},
    {SpecialToken::fim_prefix, "fim_pre", "prefix"},
    {SpecialToken::fim_suffix, "fim_suf", "suffix"},
    {SpecialToken::fim_middle, "fim_mid", "middle"},
    {SpecialToken::fim_padding, "fim_pad", {}},
    {SpecialToken::fim_repository, "fim_rep", {}},
    {SpecialToken::fim_file, "fim_sep", {}},
});
static_assert(k_names.size() == k_n_special_tokens);

struct InfillMark {
  SpecialToken which;
  std::string_view text;
};

constexpr auto k_infill_marks = std::to_array<InfillMark>({
    {SpecialToken::fim_prefix, "<|fim_prefix|>"},  // Qwen
    {SpecialToken::fim_prefix, "<fim-prefix>"},
    {SpecialToken::fim_prefix, "<fim_prefix>"},  // StarCoder, Granite
    {SpecialToken::fim_prefix,
     "<\uff5c"
     "fim\u2581"
     "begin\uff5c>"},  // DeepSeek
    {SpecialToken::fim_prefix, "<PRE>"},
    {SpecialToken::fim_prefix, "\u2581<PRE>"},      // CodeLlama
    {SpecialToken::fim_prefix, "<|code_prefix|>"},  // GLM-4.5
    {SpecialToken::fim_prefix, "<|prefix|>"},       // Falcon-H1
    {SpecialToken::fim_suffix, "<|fim_suffix|>"},
    {SpecialToken::fim_suffix, "<fim-suffix>"},
    {SpecialToken::fim_suffix, "<fim_suffix>"},
    {SpecialToken::fim_suffix,
     "<\uff5c"
     "fim\u2581hole\uff5c>"},
    {SpecialToken::fim_suffix, "<SUF>"},
    {SpecialToken::fim_suffix, "\u2581<SUF>"},
    {SpecialToken::fim_suffix, "<|code_suffix|>"},
    {SpecialToken::fim_suffix, "<|suffix|>"},
    {SpecialToken::fim_middle, "<|fim_middle|>"},
    {SpecialToken::fim_middle, "<fim-middle>"},
    {SpecialToken::fim_middle, "<fim_middle>"},
    {SpecialToken::fim_middle,
     "<\uff5c"
     "fim\u2581"
     "end\uff5c>"},
    {SpecialToken::fim_middle, "<MID>"},
    {SpecialToken::fim_middle, "\u2581<MID>"},
    {SpecialToken::fim_middle, "<|code_middle|>"},
    {SpecialToken::fim_middle, "<|middle|>"},
    {SpecialToken::fim_padding, "<|fim_pad|>"},
    {SpecialToken::fim_padding, "<fim-pad>"},
    {SpecialToken::fim_padding, "<fim_pad>"},
    {SpecialToken::fim_padding, "<PAD>"},
    {SpecialToken::fim_padding, "[PAD]"},  // Kimi
    {SpecialToken::fim_repository, "<|fim_repo|>"},
    {SpecialToken::fim_repository, "<|repo_name|>"},  // Qwen
    {SpecialToken::fim_repository, "<fim-repo>"},
    {SpecialToken::fim_repository, "<REPO>"},
    {SpecialToken::fim_repository, "<reponame>"},  // Granite
    {SpecialToken::fim_file, "<|file_sep|>"},      // Qwen
});

TokenId named_id(const gguf::Metadata& metadata, const Vocab& vocab, std::string_view name) {
  return name.empty() ? -1 : vocab.special_id(metadata, "tokenizer.ggml." + std::string(name) + "_token_id");
}

}  // namespace

SpecialIds find_special_tokens(const gguf::Metadata& metadata, const Vocab& vocab) {
  SpecialIds ids;
  ids.fill(-1);
  for (const SpecialName& name : k_names) {
    TokenId& id = ids[static_cast<std::size_t>(name.which)];
    id = named_id(metadata, vocab, name.key);
    if (id < 0) id = named_id(metadata, vocab, name.old_key);
  }
  for (const InfillMark& mark : k_infill_marks) {
    TokenId& id = ids[static_cast<std::size_t>(mark.which)];
    if (id < 0) id = vocab.find(mark.text);
  }
  return ids;
}

bool is_infill_mark(std::string_view text) noexcept {
  // Most of a vocabulary ends here.
  if (text.size() < 5 || (text.back() != '>' && text.back() != ']')) return false;
  return std::any_of(k_infill_marks.begin(), k_infill_marks.end(),
                     [text](const InfillMark& mark) { return mark.text == text; });
}

}  // namespace sluice::tokenizer
