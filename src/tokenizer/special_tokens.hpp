#pragma once

#include <array>
#include <string_view>

#include "gguf/metadata.hpp"
#include "sluice/tokenizer.hpp"

namespace sluice::tokenizer {

class Vocab;

using SpecialIds = std::array<sluice::TokenId, k_n_special_tokens>;

/// The ids that the metadata names; those of code infilling that they do not name are found by their
/// well-known texts. -1 where the vocabulary has none.
SpecialIds find_special_tokens(const gguf::Metadata& metadata, const Vocab& vocab);

/// Texts that mark the parts of a file to be filled in. A model that writes one has ended the part.
bool is_infill_mark(std::string_view text) noexcept;

}  // namespace sluice::tokenizer
