#pragma once

#include <cstdint>

#include "sluice/model.hpp"

namespace sluice::engine {

/// A guess is a token id, so an id must mean the same to a model and its draft. Models of one family often
/// have vocabularies of different sizes, padded at the end: all ids below the number returned are the same
/// token for both, and those from it on exist for one of them only. Throws Error(invalid_argument) that names
/// the first difference when an id that both have is not the same token.
std::uint32_t n_shared_tokens(const ModelInfo& model, const Tokenizer& own, const ModelInfo& draft,
                              const Tokenizer& other);

}  // namespace sluice::engine
